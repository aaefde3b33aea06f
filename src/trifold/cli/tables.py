"""`trifold predict` on a table: its rows with columns added, in constant memory; an interrupted
output continues.
"""

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from trifold import disk
from trifold.cli.terminal import count_progress, print_note
from trifold.data import DataSettings
from trifold.data.files import FORMATS
from trifold.data.lines import inner_suffix
from trifold.data.tables import choose_columns, iter_file, read_roles
from trifold.errors import DataError, UsageError
from trifold.jsonfiles import json_line, read_json

print_once = cache(print_note)
TSV: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}


class Input(NamedTuple):
    """A text or the path of a picture, its place for messages, its second text, and the row of its
    table.
    """

    place: str
    text: str
    pair: str | None
    row: Mapping[str, Any] = {}


def is_table(texts: Sequence[str]) -> bool:
    """Whether the first text is the name of a table, and the others set columns of it."""
    name = texts[0] if texts else ""
    is_name = FORMATS.get(inner_suffix(name), "text") != "text" and (
        " " not in name or Path(name).is_file()
    )
    return is_name and all(text.startswith(("data.columns.", "data.source=")) for text in texts[1:])


def check_no_files(texts: Sequence[str], command: str) -> None:
    """Raises UsageError for a text that is the name of a file, with the command that reads it.

    command: of lines of text, such as "generate runs/demo".
    """
    for text in texts:
        is_file = False
        with suppress(OSError, ValueError):  # too long for a name, or not one
            is_file = Path(text).is_file()
        if not is_file:
            continue
        file = shlex.quote(text)
        use = f"`trifold {command} - < {file}` reads its lines"
        if is_table([text]):
            model = command.partition(" ")[2]
            use = f"`trifold predict {model} {file} --out FILE.csv` reads its rows"
        raise UsageError(f"{text}: is a file; {use}, and --text takes its name as a text")


def read_table(
    texts: Sequence[str], task: str, data: DataSettings, pair: Sequence[str]
) -> Iterator[Input]:
    """The rows; a blank line is one if there is a single column. texts, pair: arguments of the
    command.
    """
    from trifold.objectives import answer, labels, summarize

    known = {"answer": answer.ROLES, "generate": summarize.ROLES}.get(task, labels.ROLES)
    *sides, (label, role) = [*known.items()][-3:]
    sides = sides[: 2 if not pair and task in ("classify", "answer", "next-sentence") else 1]
    roles = dict(sides)
    columns = {name: column for name, column in data.columns.items() if name in roles}
    chosen = (text.removeprefix("data.").removeprefix("columns.") for text in texts[1:])
    columns |= [text.partition("=")[::2] for text in chosen]
    # A column of labels is recognized so that it is not taken for a text.
    roles[label] = role._replace(convert=lambda x, at: x, required=False)
    data = data.model_copy(update={"columns": columns, "target": "target"})
    names, kind = (
        [name for each in roles.values() for name in each.names],
        FORMATS[inner_suffix(texts[0])],
    )
    found, first = dict[str, str](), dict[str, Any]()
    # A header may have a single name of a text.
    header = {**columns, **{name: name for _, each in sides for name in each.names}}
    named = data.model_copy(update={"columns": header})
    for _, place, row in iter_file(texts[0], kind, named, names):
        if row is None and len(first) != 1:
            continue
        row = dict.fromkeys(first, "") if row is None else row
        if not first:
            found, first = (
                choose_columns(row, roles, data, place, is_table=kind in ("csv", "tsv")),
                {**row},
            )
            print_once(
                f"{texts[0]}: " + ", ".join(f"{name} {each!r:.40}" for name, each in found.items())
            )
        # A null is an empty text.
        filled = {key: "" if value is None else value for key, value in row.items()}
        text, *second, _ = read_roles(filled, roles, found, place)
        yield Input(place, text, [*second, *pair, None][0], row)


def write_table(
    read: Callable[[], Iterator[Input]],
    out: Path,
    added: Sequence[str],
    key: str,
    size: int,
    predict: Any,
) -> None:
    """Write the rows with the `added` columns, in windows of `size` rows; every row is checked
    before.

    `.part` next to the output grows; `.part.json` has its size, and the `key` of the command that
    continues it.
    predict: yields rows with values, given rows, the number of those before, and what counts new
    ones.
    """
    columns, total = [name for one in islice(read(), 1) for name in [*one.row, *added]], 0
    for one in read():
        if found := {*one.row}.intersection(added):
            raise DataError(
                f"{one.place}: the column {min(found)} is one of the predictions; rename it"
            )
        total += bool(_record(out.suffix, columns, one, {}))
    if not total:
        raise DataError("the table has no row; name another file")
    part, state_file = (out.with_name(f"{out.name}.part{suffix}") for suffix in ("", ".json"))
    state: dict[str, Any] = {"key": key, "rows": 0, "bytes": 0}
    if part.is_file() and state_file.is_file():
        state = read_json(state_file)
        if state.get("key") != key:
            raise UsageError(
                f"{part}: has another input, model or option; remove it, or name another --out"
            )
        print_note(f"{part}: continues after row {state['rows']:,}")
    with part.open("ab") as file, count_progress("new rows", total - state["rows"]) as advance:
        file.truncate(state["bytes"])
        if not state["rows"] and out.suffix != ".jsonl":
            header = {name: name for name in columns}
            disk.put(file, _record(out.suffix, columns, Input("", "", None), header))
        results = predict(islice(read(), state["rows"], None), state["rows"], advance)
        while records := [_record(out.suffix, columns, *each) for each in islice(results, size)]:
            disk.put(file, b"".join(records))
            disk.flush(file)
            state |= {"rows": state["rows"] + len(records), "bytes": file.tell()}
            disk.replace_text(state_file, json_line(state))
    disk.rename(part, out)
    disk.remove(state_file)


def _record(suffix: str, columns: Sequence[str], one: Input, values: Mapping[str, Any]) -> bytes:
    """The record of a row with its predictions. Raises DataError if the format cannot hold it."""
    row, line = {**one.row, **values}, io.StringIO()
    if suffix == ".jsonl":
        return (json_line(row) + "\n").encode()
    cells = {key: x if isinstance(x, str) or x is None else json_line(x) for key, x in row.items()}
    dialect = TSV if suffix == ".tsv" else {}
    try:
        csv.DictWriter(line, columns, lineterminator="\n", **dialect).writerow(cells)
    except (csv.Error, ValueError) as error:
        raise DataError(f"{one.place}: not possible in {suffix}: {error}; write .jsonl") from None
    return line.getvalue().encode()
