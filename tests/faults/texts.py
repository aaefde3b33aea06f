"""Text in unusual encodings, misaligned or partly blank: read exactly, counted, or rejected with
its place.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from tests.faults.runs import TINY, Box, Written

from trifold.data import DataSettings, read_documents, read_pairs
from trifold.errors import DataError
from trifold.recipe import load_recipe
from trifold.train import data

# Characters that other programs take for the end of a line or field, a quote, a blank, or the start
# of a file.
SEPARATORS = "\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
TRAPS = [*SEPARATORS, *"\"',;|\\", "\ufeff", "\u200b", "\u00a0", "e\u0301", "👍🏽", "  "]
WORDS = ["sun", "rain", "Schnee", "brume", "дождь", "雪"]

Pair = tuple[str, str]


# --- pairs ----------------------------------------------------------------------------------------


def pairs_stay_aligned(box: Box) -> None:
    """Pairs with unusual characters in every format, plain and compressed, are read with their line
    numbers; a lost, duplicate or broken line is rejected with the name of its file."""
    rng = box.rng
    pairs = [
        (_text_with_traps(rng), _text_with_traps(rng)) for _ in range(rng.randrange(2, 40))
    ] + [("the", "end")]
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(pairs))
        pairs[place] = rng.choice([("", pairs[place][1]), (pairs[place][0], " "), ("", "")])
    pairs.append(("last", "one"))
    form = list(FORMS)[box.number % len(FORMS)]
    broken = rng.randrange(len(pairs) - 1) if box.number // len(FORMS) % 2 else None
    end = rng.choice(["\n", "\r\n"])
    written = FORMS[form](pairs, broken, rng)
    names = ["text.source", "text.target"] if form == "two files" else [f"pairs.{form}"]
    packed = rng.choice(["", ".gz"])
    for name, lines in zip(names, written.files, strict=True):
        raw = b"\xef\xbb\xbf" * rng.randrange(2) + "".join(line + end for line in lines).encode()
        if rng.random() < 0.3:
            raw = raw.removesuffix(end.encode())
        (box.folder / (name + packed)).write_bytes(gzip.compress(raw) if packed else raw)
    files = [str(box.folder / (name + packed)) for name in names]
    blank: Literal["drop", "keep"] = rng.choice(["drop", "keep"])
    settings = DataSettings(blank=blank)
    what = f"{form}{packed}, {len(pairs)} pairs"
    if broken is not None:
        where = files[0] if written.line is None else f"{files[0]}:{written.line}"
        message = _rejection(lambda: read_pairs(files, settings))
        box.expect(
            message is not None and message.startswith(where),
            f"{what}, broken at {broken}: {message}",
        )
        return
    try:
        found = read_pairs(files, settings)
    except DataError as error:
        box.expect(False, f"{what}: refused: {error}")
        return
    kept = [
        i for i, pair in enumerate(pairs) if blank == "keep" or all(side.strip() for side in pair)
    ]
    box.expect(
        list(zip(found.sources, found.targets, strict=True)) == [pairs[i] for i in kept], what
    )
    box.expect(found.lines == [written.numbers[i] for i in kept], f"{what}: other numbers of lines")


def _text_with_traps(rng: Random) -> str:
    """Words with unusual characters between them; the first and last character are letters."""
    return "".join(
        rng.choice(WORDS) + (rng.choice(TRAPS) if rng.random() < 0.5 else " ")
        for _ in range(rng.randrange(1, 6))
    ) + rng.choice(WORDS)


class Lines(NamedTuple):
    """The lines of each file, the line number of each pair, and that of the broken line if a
    message can name it.
    """

    files: list[list[str]]
    numbers: list[int]
    line: int | None


def _two_files(pairs: Sequence[Pair], broken: int | None, rng: Random) -> Lines:
    sides = [[source for source, _ in pairs], [target for _, target in pairs]]
    if broken is not None:
        side = rng.choice(sides)
        if rng.random() < 0.5:
            del side[broken]
        else:
            side.insert(broken, side[broken])
    return Lines(sides, list(range(1, len(pairs) + 1)), None)


def _tsv(pairs: Sequence[Pair], broken: int | None, rng: Random) -> Lines:
    lines = ["source\ttarget", *("\t".join(pair) for pair in pairs)]
    if broken is not None:
        lines[broken + 1] = rng.choice([lines[broken + 1] + "\tmore", "only one"])
    numbers = list(range(2, len(pairs) + 2))
    return Lines([lines], numbers, None if broken is None else numbers[broken])


def _csv(pairs: Sequence[Pair], broken: int | None, rng: Random) -> Lines:
    lines = ["source,target", *map(_record, pairs)]
    if broken is not None:
        lines[broken + 1] += rng.choice([",more", ',"more', 'x"x'])
    numbers = list(range(2, len(pairs) + 2))
    return Lines([lines], numbers, None if broken is None else numbers[broken])


def _record(pair: Pair) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="", quoting=csv.QUOTE_ALL).writerow(pair)
    return out.getvalue()


def _jsonl(pairs: Sequence[Pair], broken: int | None, rng: Random) -> Lines:
    ascii_only = rng.random() < 0.5
    lines = [json.dumps({"source": s, "target": t}, ensure_ascii=ascii_only) for s, t in pairs]
    if broken is not None:
        lines[broken] = rng.choice(
            [lines[broken][:-1], '{"source": "alone"}', "[]", '{"source": 1, "target": "x"}']
        )
    numbers = list(range(1, len(pairs) + 1))
    return Lines([lines], numbers, None if broken is None else numbers[broken])


FORMS: dict[str, Callable[[Sequence[Pair], int | None, Any], Lines]] = {
    "two files": _two_files,
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
}


def _rejection(read: Callable[[], object]) -> str | None:
    """The error message, if any."""
    try:
        read()
    except DataError as error:
        return str(error)
    return None


# --- counts ---------------------------------------------------------------------------------------

COUNTS = {
    "read": r": ([\d,]+) (?:pair|document)s?,",
    "blank": r"([\d,]+) (?:with a blank side|blank) \(",
    "repeated": r"([\d,]+) repeated \(",
    "odd": r"([\d,]+) with unusual line breaks",
    "used": r"; ([\d,]+) used",
    "too long": r"([\d,]+) of [\d,]+ pairs are longer than",
    "in an epoch": r"an epoch: ([\d,]+) pairs",
}


def skipped_rows_are_counted(box: Box) -> None:
    """Blank, duplicate, odd and overlong rows are kept, dropped or truncated as configured, and
    counted correctly.
    """
    rng = box.rng
    texts = [_odd(rng) for _ in range(rng.randrange(20, 80))]
    texts += rng.choices(texts, k=rng.randrange(10))
    blank, duplicates = rng.choice(["drop", "keep"]), rng.choice(["drop", "keep"])
    changes = {
        "data.blank": blank,
        "data.duplicates": duplicates,
        "data.valid": "embedded:smoke",
        "data.test": None,
    }
    tell = _count_pairs if box.number % 2 else _count_documents
    message, expected = tell(box, texts, changes)
    found = {name: _number(pattern, message) for name, pattern in COUNTS.items()}
    box.expect(
        found == {name: expected.get(name, 0) for name in COUNTS},
        f"expected {expected}, reported {message}",
    )


def _odd(rng: Random) -> str:
    letters = "".join(rng.choices("abcdefg", k=rng.randrange(1, 30)))
    return str(
        rng.choice([letters, letters, letters, "", " ", f"a\u2028{letters}", f"a\x85{letters}"])
    )


def _expected_counts(
    things: Sequence[Any], blank: Callable[[Any], bool], odd: Callable[[Any], bool], changes: Any
) -> Any:
    """The counts by a slow definition, and the rows that are used."""
    count = dict.fromkeys(("read", "blank", "repeated", "odd"), 0)
    used: list[Any] = []
    earlier: list[Any] = []
    for thing in things:
        count["read"] += 1
        if blank(thing):
            count["blank"] += 1
            if changes["data.blank"] == "drop":
                continue
        if thing in earlier:
            count["repeated"] += 1
            if changes["data.duplicates"] == "drop":
                continue
        earlier.append(thing)
        count["odd"] += odd(thing)
        used.append(thing)
    return count, used


def _count_pairs(box: Box, texts: list[str], changes: dict[str, Any]) -> tuple[str, dict[str, int]]:
    half = len(texts) // 2
    pairs = [*zip(texts[:half], texts[half : 2 * half], strict=True), ("a", "b")]
    pairs += box.rng.choices(pairs, k=3)
    files = [box.folder / "a.source", box.folder / "a.target"]
    for file, side in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{text}\n" for text in side), encoding="utf-8", newline="\n")
    count, used = _expected_counts(
        pairs,
        lambda pair: not all(text.strip() for text in pair),
        lambda pair: any(set(text) & set(SEPARATORS) for text in pair),
        changes,
    )
    longest, overflow = box.rng.randrange(3, 40), box.rng.choice(["drop", "truncate"])
    count["too long"] = sum(max(map(len, pair)) + 1 > longest for pair in used)  # and </s>
    count["in an epoch"] = len(used) - (count["too long"] if overflow == "drop" else 0)
    count["used"] = len(used) if len(used) < count["read"] else 0  # printed if any was dropped
    more = {
        "data.train": list(map(str, files)),
        "batch.max_length": longest,
        "batch.on_overflow": overflow,
    }
    return _prepared(box, {**changes, **more}), count


def _count_documents(
    box: Box, texts: list[str], changes: dict[str, Any]
) -> tuple[str, dict[str, int]]:
    texts.append("the end")
    file = box.folder / "text.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    count, used = _expected_counts(
        texts,
        lambda text: not text.strip(),
        lambda text: bool(set(text) & set(SEPARATORS)),
        changes,
    )
    count["used"] = len(used) if len(used) < count["read"] else 0
    settings = DataSettings(blank=changes["data.blank"], duplicates=changes["data.duplicates"])
    found = read_documents(str(file), settings)
    box.expect(found.texts == used, "other documents are used")
    box.expect(found.report.characters == sum(map(len, used)), "other characters are counted")
    return str(found.report), count


def _prepared(box: Box, changes: dict[str, Any]) -> str:
    """The report of a run about its data."""
    recipe = load_recipe("smoke", {**TINY, **changes})
    data.load_data(recipe, box.folder / "tokenizer", Written(box.log))
    lines = box.output().splitlines()
    return "\n".join(line for line in lines if "smoke" not in line)


def _number(pattern: str, message: str) -> int:
    found = re.search(pattern, message)
    return int(found[1].replace(",", "")) if found else 0


# --- encodings ------------------------------------------------------------------------------------

MANY = 30
LONG = 200


class Cell(NamedTuple):
    """An unusual encoding: how clean bytes become unusual, and what follows the file name in the
    error.
    """

    make: Callable[[bytes, int], bytes]  # from the clean bytes and the offset of the tenth line
    place: str | None  # None: the text is read unchanged


CELLS: dict[str, Cell] = {
    "clean": Cell(lambda raw, at: raw, None),
    "byte order mark": Cell(lambda raw, at: b"\xef\xbb\xbf" + raw, None),
    "CRLF": Cell(lambda raw, at: raw.replace(b"\n", b"\r\n"), None),
    "no line end at the end": Cell(lambda raw, at: raw.removesuffix(b"\n"), None),
    "Latin-1": Cell(lambda raw, at: raw[:at] + b"\xe9" + raw[at:], ":10:1:"),
    "cut UTF-8": Cell(lambda raw, at: raw[:at] + "é".encode()[:1] + raw[at:], ":10:1:"),
    "surrogates": Cell(lambda raw, at: raw[:at] + b"\xed\xa0\x80" + raw[at:], ":10:1:"),
    "overlong UTF-8": Cell(lambda raw, at: raw[:at] + b"\xc0\xaf" + raw[at:], ":10:1:"),
    "NUL": Cell(lambda raw, at: raw[:at] + b"\0" + raw[at:], ":10:1:"),
    "UTF-16": Cell(lambda raw, at: raw.decode().encode("utf-16"), ":1:1:"),
    "UTF-32": Cell(lambda raw, at: raw.decode().encode("utf-32"), ":1:1:"),
    "a line too long": Cell(lambda raw, at: raw[:at] + b"x" * (LONG + 1) + raw[at:], ":10:"),
    "empty": Cell(lambda raw, at: b"", ""),
}
KINDS = ("source", "tsv", "csv", "jsonl", "txt")


def encodings_are_read_or_rejected(box: Box) -> None:
    """Every unusual encoding in every kind of file: the same text, or rejected with file, line and
    byte.
    """
    name, kind = list(CELLS)[box.number % len(CELLS)], KINDS[box.number // len(CELLS) % len(KINDS)]
    cell, rng = CELLS[name], box.rng
    pairs = [(rng.choice(WORDS), f"{rng.choice(WORDS)} {number}") for number in range(MANY)]
    ways = {
        "source": _two_files,
        "txt": _two_files,
        **{each: FORMS[each] for each in ("tsv", "csv", "jsonl")},
    }
    written = ways[kind](pairs, None, rng).files
    clean = "".join(f"{line}\n" for line in written[0]).encode()
    tenth = sum(len(line.encode()) + 1 for line in written[0][:9])
    file = box.folder / f"text.{kind}"
    file.write_bytes(cell.make(clean, tenth))
    settings = DataSettings(max_line_bytes=LONG)
    source: str | list[str] = str(file)
    if kind == "source":
        partner = box.folder / "text.target"
        partner.write_text(
            "".join(f"{line}\n" for line in written[1]), encoding="utf-8", newline="\n"
        )
        source = [str(file), str(partner)]

    def read() -> list[Any]:
        if kind == "txt":
            return read_documents(source, settings).texts
        found = read_pairs(source, settings)
        return list(zip(found.sources, found.targets, strict=True))

    if cell.place is None:
        expected: list[Any] = [one for one, _ in pairs] if kind == "txt" else pairs
        box.expect(read() == expected, f"{name} in {kind}: another text")
        return
    message = _rejection(read)
    box.expect(message is not None, f"{name} in {kind} was read")
    start = f"{file}{cell.place}" if kind != "txt" or name != "empty" else ""
    box.expect(str(message).startswith(start), f"{name} in {kind}: {message}")
