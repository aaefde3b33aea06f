"""Tables of a seed: well-formed ones, and odd ones that a person reads without a second thought."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

WORDS = (
    "a the film plot was not good, dull; 5 stars | “quoted” café 東京 it's 0,5 3.14 #1 so-so (yes) "
    "text label review english no. Grüße 😀 half/half x=y"
).split()
SIGNS = {  # more words, which the format can hold
    "csv": ['"', "\n", "a\rb", "\t", '"all of it"'],
    "tsv": ['"', 'the "best" one', '"all of it"', '5" disk', '""', '"Well,', 'so."'],
    "jsonl": ['"', "\n", "\t", "\u2028"],
}
LABELS = (
    ("good", "bad", "not sure"),
    ("+", "-", "?"),
    ("0", "1", "2"),
    ("0.5", "-1.25", "3.0"),
    ("1 star", "2 stars", "10 stars"),
    ("True", "False"),
)
COLUMNS = (
    ("text", "label"),
    ("label", "text"),
    ("id", "text", "label"),
    ("", "text", "label"),  # an index of pandas
    ("text", "label", "date"),
)
NAMES = {"text": ("text", "review", "Sentence"), "label": ("label", "Sentiment", "class")}
Row = tuple[str, str]  # a text and its label


class Made(NamedTuple):
    """A file: its name, its content, the settings that it needs, and its texts and labels."""

    name: str
    content: bytes
    settings: dict[str, Any]
    rows: list[Row]


def well_formed(seed: int) -> Made:
    """A table that follows the rules of its format: CSV, TSV without quotes, or JSONL."""
    source = random.Random(seed)
    kind = source.choice(["csv", "csv", "tsv", "tsv", "jsonl"])
    rows = _rows(source, SIGNS[kind], source.choice(LABELS))
    columns = source.choice(COLUMNS)
    names, cells = _names(source, columns), _cells(columns, rows)
    if kind == "jsonl":
        objects = [dict(zip(names, row, strict=True)) for row in cells]
        lines = [json.dumps(each, ensure_ascii=source.random() < 0.5) + "\n" for each in objects]
        return Made(*_encode(source, "a.jsonl", "".join(lines)), {}, rows)
    has_header = source.random() < 0.7
    numbers = {role: columns.index(role) for role in ("text", "label")}
    settings = {} if has_header or columns == COLUMNS[0] else {"columns": numbers}
    table = [names, *cells] if has_header else cells
    if kind == "csv":
        text = _delimited(table, ",", source.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    else:
        text = "".join("\t".join(row) + "\n" for row in table)
    return Made(*_encode(source, f"a.{kind}", text), settings, rows)


def odd(seed: int) -> Made:
    """A table with a header: joined files, titles, empty columns, a line `sep=`, inner byte order
    marks, delimiters of another suffix, tabs with quotes, and names of columns as texts.
    """
    source = random.Random(seed)
    kind, delimiter = source.choice(
        [("csv", ","), ("csv", ";"), ("csv", "\t"), ("csv", "|"), ("tsv", "\t")]
    )
    columns, labels = source.choice(COLUMNS), source.choice(LABELS)
    names = _names(source, columns)
    empty = [""] * source.choice([0, 0, 1, 3])
    text, rows = "", list[Row]()
    # A text with a tab and a line end could be two lines without quotes.
    signs = [sign for sign in SIGNS["csv"] if sign != "\t" or delimiter != "\t"]
    signs = source.choice([signs, ["\t", '"']])
    for part in range(source.choice([1, 2])):
        own = _rows(source, signs, labels)
        if source.random() < 0.5:
            own[0] = (names[columns.index("text")], own[0][1])
        table = [row + empty for row in [names, *_cells(columns, own)]]
        text += "\ufeff" * (part and source.choice([0, 1])) + _delimited(table, delimiter)
        rows += own
    width = len(names) + len(empty)
    above = ["", f"sep={delimiter}\n", "Reviews of 2026\n\n", f"Reviews{delimiter * (width - 1)}\n"]
    return Made(*_encode(source, f"a.{kind}", source.choice(above) + text), {}, rows)


def _rows(source: random.Random, signs: Sequence[str], labels: Sequence[str]) -> list[Row]:
    words = [*WORDS, *signs]
    return [
        (" ".join(["so", *source.choices(words, k=source.randint(2, 8))]), source.choice(labels))
        for _ in range(source.randint(3, 12))
    ]


def _names(source: random.Random, columns: Sequence[str]) -> list[str]:
    return [source.choice(NAMES.get(column, (column,))) for column in columns]


def _cells(columns: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    return [
        [{"text": text, "label": label}.get(column, str(number)) for column in columns]
        for number, (text, label) in enumerate(rows)
    ]


def _delimited(
    rows: Sequence[Sequence[str]], delimiter: str, quoting: Any = csv.QUOTE_MINIMAL
) -> str:
    """A table as the csv module writes it, which pandas uses."""
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _encode(source: random.Random, name: str, text: str) -> tuple[str, bytes]:
    """The name and the bytes of a file, with or without a byte order mark, CRLF, a last line end
    and gzip.
    """
    text = text.removesuffix("\n") if source.random() < 0.2 else text
    if source.random() < 0.3 and '"' not in text:
        text = text.replace("\n", "\r\n")
    raw = (source.choice(["", "\ufeff"]) + text).encode()
    return (f"{name}.gz", gzip.compress(raw)) if source.random() < 0.1 else (name, raw)
