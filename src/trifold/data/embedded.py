"""Text that is part of trifold itself, so that the first training needs no file and no network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from trifold.errors import DataError, SettingsError

Rows: TypeAlias = Sequence[Mapping[str, str]]
Splits: TypeAlias = Mapping[str, Rows]  # "train", "valid" and "test"

_FORM = re.compile(r"embedded:(?P<name>[^:]+)(?::(?P<split>[^:]+))?")
_ONES = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def smoke() -> Splits:
    """The numbers below 300 in words and in digits ("two hundred and forty seven", "2 4 7").

    From 20 on, numbers that end in 3 are for validation and those that end in 7 for the test: all of their
    words are known from training, but not their meeting.
    """
    splits: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for number in range(300):
        split = {3: "valid", 7: "test"}.get(number % 10, "train") if number >= 20 else "train"
        splits[split].append({"source": _in_words(number), "target": " ".join(str(number))})
    return splits


def phrasebook() -> Splits:
    """English and French sentences of the generated phrasebook; columns `english` and `french` too."""
    from trifold.data import phrasebook as book

    def columns(rows: Sequence[Any]) -> Rows:
        return [
            {"source": row.english, "target": row.french, "english": row.english, "french": row.french}
            for row in rows
        ]

    train, valid, test = book.split(train_rows=45_000, test_rows=500, seed=0)
    return {"train": columns(train), "valid": columns(valid), "test": columns(test)}


def functions() -> Splits:
    """Functions of the standard library that this interpreter carries; columns text, signature and module.

    Raises DataError where it carries no sources.
    """
    from trifold.data import stdlib

    parts = stdlib.divided(stdlib.functions(stdlib.home()))
    return {
        split: [{"text": one.text, "signature": one.signature, "module": one.module} for one in found]
        for split, found in parts.items()
    }


def docstrings() -> Splits:
    """Docstrings of the standard library; column text. Raises DataError where this Python carries no sources."""
    from trifold.data import stdlib

    splits: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for one in stdlib.docstrings(stdlib.home()):
        splits[stdlib.side(one)].append({"text": one.text})
    return splits


def packages() -> Splits:
    """Docstrings of the packages that have most of them, divided as in `docstrings`; columns text and package."""
    from trifold.data import stdlib

    found = stdlib.docstrings(stdlib.home())
    known = set(stdlib.packages(found))
    splits: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for one in found:
        if one.package in known:
            splits[stdlib.side(one)].append({"text": one.text, "package": str(one.package)})
    return splits


SOURCES: dict[str, Callable[[], Splits]] = {
    "smoke": smoke,
    "phrasebook": phrasebook,
    "functions": functions,
    "docstrings": docstrings,
    "packages": packages,
}


@cache
def splits(name: str) -> Splits:
    """All splits of the embedded source `name`; DataError lists the known ones."""
    if name not in SOURCES:
        raise DataError(f"embedded:{name}: no such embedded text; there are {', '.join(sorted(SOURCES))}")
    return SOURCES[name]()


def rows(name: str, split: str) -> Rows:
    """The rows of one split; DataError lists the known splits."""
    known = splits(name)
    if split not in known:
        raise DataError(f"embedded:{name}:{split}: no such split; there are {', '.join(known)}")
    return known[split]


def places(source: str, split: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows that `embedded:NAME:SPLIT` means, of `split` where it names none. Raises SettingsError."""
    if not (match := _FORM.fullmatch(source)):
        raise SettingsError(f"data: {source!r} is not of the form embedded:NAME or embedded:NAME:SPLIT")
    for row in rows(match["name"], match["split"] or split):
        yield source, row


def _in_words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        return f"{_TENS[number // 10]} {_ONES[number % 10]}".removesuffix(" zero")
    return f"{_ONES[number // 100]} hundred and {_in_words(number % 100)}".removesuffix(" and zero")
