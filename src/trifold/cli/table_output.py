"""The output of `trifold predict` for a file of rows: the rows with columns added, in constant
memory. An interrupted output continues.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from trifold import disk
from trifold.cli.interruption import continued_by_the_same_command
from trifold.cli.progress import count_progress
from trifold.cli.tables import Input
from trifold.cli.terminal import print_note
from trifold.data.dialects import Dialect
from trifold.data.lines import inner_suffix
from trifold.errors import DataError, UsageError
from trifold.folders import named
from trifold.jsonfiles import json_line, read_json

# How tables are written, unless the table that is read is one of the same suffix.
DIALECTS = {".csv": Dialect(",", has_quotes=True), ".tsv": Dialect("\t", has_quotes=False)}
BOM = "\ufeff"


# --- formats --------------------------------------------------------------------------------------


def _json_record(columns: Sequence[str], row: Mapping[str, Any], dialect: Dialect) -> str:
    return json_line(row) + "\n"


def _table_record(columns: Sequence[str], row: Mapping[str, Any], dialect: Dialect) -> str:
    """A record of cells; a value that is no text becomes JSON. Raises csv.Error."""
    line: str = _writer(dialect).writerow([_cell(row.get(name)) for name in columns])
    return line


class _Line:
    """A file that returns what is written, as the writer of the csv module then does."""

    def write(self, line: str) -> str:
        return line


@cache
def _writer(dialect: Dialect) -> Any:
    options: dict[str, Any] = {"delimiter": dialect.delimiter, "lineterminator": "\n"}
    if not dialect.has_quotes:
        options |= {"quoting": csv.QUOTE_NONE, "quotechar": None}
    return csv.writer(_Line(), **options)


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if type(value) is float and isfinite(value):
        return repr(value)  # as JSON writes it, in a twentieth of the time
    return json_line(value)


def _conll_record(columns: Sequence[str], row: Mapping[str, Any], dialect: Dialect) -> str:
    """The words of a sentence with the lists of the row, one word per line. Raises ValueError."""
    lists = [row[name] for name in columns if isinstance(row.get(name), list)]
    if len(set(map(len, lists))) != 1:
        raise ValueError("the row has no lists of words and tags of one length")
    return "".join("\t".join(map(str, fields)) + "\n" for fields in zip(*lists, strict=True)) + "\n"


RECORDS = {
    ".csv": _table_record,
    ".tsv": _table_record,
    ".jsonl": _json_record,
    ".conll": _conll_record,
}
SUFFIXES = ", ".join(RECORDS)


class Format(NamedTuple):
    """The format of an output: the suffix of its file, and the dialect of a table."""

    suffix: str
    dialect: Dialect

    @classmethod
    def of(cls, out: Path, source: str, dialect: Dialect | None) -> Format:
        """The format of an output; a table is written like a `source` with the same suffix."""
        if dialect is not None and inner_suffix(source) == out.suffix:
            return cls(out.suffix, dialect)
        return cls(out.suffix, DIALECTS.get(out.suffix, DIALECTS[".csv"]))

    def record(self, columns: Sequence[str], item: Input, values: Mapping[str, Any]) -> bytes:
        """The record of a row with its predictions. Raises DataError if the format cannot hold
        it.
        """
        try:
            return RECORDS[self.suffix](columns, {**item.row, **values}, self.dialect).encode()
        except (csv.Error, ValueError) as error:
            problem = f"not possible in {self.suffix}: {error}"
            raise DataError(f"{item.place}: {problem}; write .jsonl") from None

    def header(self, columns: Sequence[str]) -> bytes:
        """What stands above the rows."""
        if self.suffix not in DIALECTS:
            return b""
        mark = BOM if self.dialect.has_bom else ""
        return mark.encode() + self.record(columns, Input("", ""), {name: name for name in columns})


def name_columns(columns: Collection[str], added: Sequence[str]) -> dict[str, str]:
    """The names of the added columns: those that the table already has begin with `model_`."""
    taken = {*columns}
    names = {}
    for name in added:
        names[name] = name
        while names[name] in taken:
            names[name] = f"model_{names[name]}"
        taken.add(names[name])
    renamed = {old: new for old, new in names.items() if old != new}
    if renamed:
        print_note(
            f"the table already has {', '.join(map(repr, renamed))}; the columns of the "
            f"predictions are {', '.join(map(repr, renamed.values()))}"
        )
    return names


# --- writing --------------------------------------------------------------------------------------


def write_table(
    read_items: Callable[[], Iterator[Input]],
    out: Path,
    form: Format,
    added: Sequence[str],
    key: str,
    size: int,
    predict: Any,
    *,
    overwrite: bool = False,
) -> None:
    """Write the rows with the `added` columns, in windows of `size` rows; every row is checked
    before.

    `.part` next to the output grows; `.part.json` has its size, and the `key` of the command that
    continues it; with `overwrite`, that of another command is replaced.
    predict: yields rows with values, given rows, the number of those before, and what counts new
    ones. Raises UsageError if another process writes this output.
    """
    if out.is_symlink():  # which stays
        out = out.resolve()
    with disk.exclusive(out):
        columns, total = _check(read_items, form)
        names = name_columns(columns, added)
        part = out.with_name(f"{out.name}.part")
        state_file = out.with_name(f"{out.name}.part.json")
        state = _read_state(part, state_file, key, overwrite=overwrite)
        columns += names.values()
        left = total - state["rows"]
        rows = islice(read_items(), state["rows"], None)
        with (
            continued_by_the_same_command(),
            part.open("ab") as file,
            count_progress("new rows", left) as advance,
            closing(predict(rows, state["rows"], advance)) as results,
        ):
            file.truncate(state["bytes"])
            if not state["rows"]:
                disk.put(file, form.header(columns))
            while window := [*islice(results, size)]:
                for item, values in window:
                    new_values = {names[name]: value for name, value in values.items()}
                    disk.put(file, form.record(columns, item, new_values))
                disk.flush(file)
                state |= {"rows": state["rows"] + len(window), "bytes": file.tell()}
                disk.replace_text(state_file, json_line(state))
        disk.rename(part, out)
        disk.remove(state_file)


def _read_state(part: Path, state_file: Path, key: str, *, overwrite: bool) -> dict[str, Any]:
    """The key, rows and bytes of an interrupted output, or of a new one. Raises UsageError for the
    output of another command, and for one that has lost bytes, unless it may be overwritten.
    """
    new_state = {"key": key, "rows": 0, "bytes": 0}
    if not part.is_file() or not state_file.is_file():
        return new_state
    state = read_json(named(state_file))
    problem = ""
    if state.get("key") != key:
        problem = "has another input, model or option"
    elif part.stat().st_size < state["bytes"]:
        problem = f"is shorter than {state_file.name} records"
    if problem and overwrite:
        return new_state
    if problem:
        raise UsageError(
            f"{part}: {problem}; name another --out, or add --overwrite to begin again"
        )
    print_note(f"{part}: continues after row {state['rows']:,}")
    return state


def _check(read_items: Callable[[], Iterator[Input]], form: Format) -> tuple[list[str], int]:
    """The columns of all rows, in the order of their first use, and the number of rows.

    Raises DataError for a row that the format cannot hold, and if there is none.
    """
    columns = dict[str, None]()
    total = 0
    for item in read_items():
        columns |= dict.fromkeys(item.row)
        form.record([*item.row], item, {})
        total += 1
    if not total:
        raise DataError("the table has no row; name another file")
    return [*columns], total
