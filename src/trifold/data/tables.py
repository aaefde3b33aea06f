"""Rows of files: of TSV and CSV, of JSON lines, and of the formats that other modules read."""

import json
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from trifold.data.dialects import (
    Dialect,
    csv_fields,
    csv_records,
    find_dialect,
    is_delimiter_line,
)
from trifold.data.excel import iter_sheet
from trifold.data.formats import FILE_FORMATS, NumberedRow
from trifold.data.headers import (
    COMPARED_ROWS,
    Header,
    find_header,
    has_known_names,
    plain_name,
)
from trifold.data.lines import BOM, STANDARD_INPUT, WHOLE_FILE, check_first_lines, iter_lines
from trifold.data.parquet import iter_parquet
from trifold.data.settings import DataSettings
from trifold.errors import DataError, plural

_MARK = BOM.decode()  # in the text of a line


@dataclass
class Table:
    """The rows of a file.

    has_columns: whether the rows have the same columns in one order, as in a table. dialect: of a
    CSV or TSV file. notes: what is unusual in its form, in words. skipped: counts of
    rows and characters that are no data, complete when all rows are read.
    """

    rows: Iterator[NumberedRow]
    skipped: Counter[str]
    has_columns: bool = False
    dialect: Dialect | None = None
    notes: list[str] = field(default_factory=list)


def open_table(
    file: str,
    kind: str,
    settings: DataSettings,
    known: Container[str] = (),
    skipped: Counter[str] | None = None,
) -> Table:
    r"""Open a file of a kind that holds rows.

    The rows of a CSV or TSV file are by the names in its header, else by the numbers of the columns
    ("0", "1", …). Every record has as many columns as the first. CSV (RFC 4180): double quotes, and
    line ends inside quotes, which become `\n`. A line `sep=;`, titles above the header, empty
    columns at the end, and the headers of joined files are left out, and noted or counted. The
    first sheet of an Excel workbook is read as its CSV file.

    known: names of columns, in lower case, which indicate that a row is a header. skipped: counts
    to add to.
    """
    skipped = Counter() if skipped is None else skipped
    if FILE_FORMATS[kind].reader:
        return Table(FILE_FORMATS[kind].load_reader()(file, settings), skipped)
    if kind == "parquet":
        return Table(iter_parquet(file, "", WHOLE_FILE), skipped)
    if kind == "jsonl":
        lines = check_first_lines(iter_lines(file, settings.max_line_bytes), file)
        return Table(read_objects(lines, file), skipped)
    if kind == "excel":
        return _open_sheet(file, settings, known, skipped)
    return _open_delimited(file, kind, settings, known, skipped)


def _open_sheet(
    file: str, settings: DataSettings, known: Container[str], skipped: Counter[str]
) -> Table:
    """Open an Excel workbook."""
    notes: list[str] = []
    records = iter_sheet(file, notes)
    first_records = list(islice(records, COMPARED_ROWS))
    if not first_records:
        raise DataError(f"{file}: the first sheet is empty; there is nothing to read in it")
    width = max(len(cells) for _, cells in first_records)

    def fill(record: tuple[int, list[str]]) -> tuple[int, list[str]]:
        number, cells = record
        if cells == [""]:
            return record
        return number, cells + [""] * (width - len(cells))

    whole = map(fill, chain(first_records, records))
    table = _named_table(whole, file, settings, known, skipped)
    table.notes[:0] = notes
    return table


def _open_delimited(
    file: str, kind: str, settings: DataSettings, known: Container[str], skipped: Counter[str]
) -> Table:
    """Open a TSV or CSV file."""
    lines = check_first_lines(iter_lines(file, settings.max_line_bytes), file)
    first_lines = list(islice(lines, COMPARED_ROWS))
    dialect = find_dialect(file, kind, first_lines, settings, known)
    records = _read_records(chain(first_lines, lines), file, dialect, settings, skipped)
    table = _named_table(records, file, settings, known, skipped)
    table.dialect = dialect
    notes = [] if settings.delimiter is not None else dialect.describe(kind)
    if first_lines and is_delimiter_line(first_lines[0]):
        notes.append(f"line 1 skipped: {first_lines[0]!r}")
    table.notes[:0] = notes
    return table


def _named_table(
    records: Iterator[tuple[int, list[str]]],
    file: str,
    settings: DataSettings,
    known: Container[str],
    skipped: Counter[str],
) -> Table:
    """The records of a table, by their numbers, as rows by the names in their header."""
    first_records = list(islice(records, COMPARED_ROWS))
    header = find_header([cells for _, cells in first_records], settings, known)
    notes = [*_describe_titles(first_records, header)]
    notes += _describe_repeated(header.names)
    if header.is_padded:
        notes.append("without empty columns at the end")
    below = (record for index, record in enumerate(first_records) if index not in header.skipped)
    # A later row with several of these names is an error: a second header.
    names = known if settings.header is None else ()
    rows = _name_cells(chain(below, records), file, header, names, skipped)
    return Table(rows, skipped, has_columns=True, notes=notes)


def _describe_titles(records: Sequence[tuple[int, list[str]]], header: Header) -> Iterator[str]:
    """A phrase for each title above the header."""
    for index in sorted(header.skipped)[:-1]:
        line, cells = records[index]
        if cells != [""]:
            yield f"line {line} skipped: {' '.join(cells).strip()!r:.60}"


def _describe_repeated(names: Sequence[str]) -> Iterator[str]:
    """A phrase for each column with the name of an earlier one."""
    for column, name in enumerate(names):
        first = names.index(name)
        if name and first < column:
            yield f"columns {first} and {column} (from 0) are both named {name!r:.40}"


def iter_file(
    file: str, kind: str, settings: DataSettings, known: Container[str] = ()
) -> Iterator[NumberedRow]:
    """The rows of a file, as in `open_table`."""
    return open_table(file, kind, settings, known).rows


def read_dialect(
    file: str, kind: str, settings: DataSettings, known: Container[str] = ()
) -> Dialect:
    """How a file of kind `csv` or `tsv` is written; see `open_table`."""
    lines = list(islice(iter_lines(file, settings.max_line_bytes), COMPARED_ROWS))
    return find_dialect(file, kind, lines, settings, known)


def _read_records(
    lines: Iterable[str],
    file: str,
    dialect: Dialect,
    settings: DataSettings,
    skipped: Counter[str],
) -> Iterator[tuple[int, list[str]]]:
    """The cells of each record, without the byte order marks and the lines `sep=;` of joined
    files.
    """
    records: Iterable[tuple[int, str]] = enumerate(lines, start=1)
    if dialect.has_quotes:
        records = csv_records(lines, file, settings.max_line_bytes)
    names_delimiter = False
    for number, record in records:
        if record.startswith(_MARK):
            record = record.lstrip(_MARK)
            skipped["inner byte order mark"] += 1
        if (number == 1 or names_delimiter) and is_delimiter_line(record):
            names_delimiter = True
            continue
        if dialect.has_quotes:
            yield number, csv_fields(record, dialect.delimiter, f"{file}:{number}")
        else:
            yield number, record.split(dialect.delimiter)


def _name_cells(
    records: Iterable[tuple[int, list[str]]],
    file: str,
    header: Header,
    known: Container[str],
    skipped: Counter[str],
) -> Iterator[NumberedRow]:
    """The cells of each record by the names of their columns, without the headers of joined
    files.
    """
    width = header.width
    names = list(map(plain_name, header.names))
    keys = list(_unique_keys(header.names or [str(column) for column in range(width)]))
    by_name = dict(zip(names, keys, strict=True)) if names else {}
    for number, cells in records:
        place = f"{file}:{number}"
        if cells == [""]:
            yield number, place, None
            continue
        if header.is_padded and not any(cells[width:]):
            cells = cells[:width]
        if len(names) > 1 and plain_name(cells[0]) in by_name:
            repeated = list(map(plain_name, cells))
            if sorted(repeated) == sorted(names):
                skipped["repeated header"] += 1
                if len(by_name) == width:  # all names differ; the columns may be in another order
                    keys = [by_name[name] for name in repeated]
                continue
        if has_known_names(cells, known):
            raise _second_header(place, cells, is_first=not names)
        if len(cells) != width:
            raise DataError(
                f"{place}: {plural(len(cells), 'column')} where the first row has {width}; "
                "a stray tab, comma or quote?"
            )
        yield number, place, dict(zip(keys, cells, strict=True))


def _unique_keys(names: Sequence[str]) -> Iterator[str]:
    """The names, and the number of the column where a name occurs again."""
    for column, name in enumerate(names):
        yield str(column) if name in names[:column] else name


def _second_header(place: str, cells: Sequence[str], *, is_first: bool) -> DataError:
    remedy = "name joined files in a list, or set data.header=true"
    if is_first:
        remedy = "remove the rows above it, or set data.header=false"
    return DataError(
        f"{place}: {', '.join(cells)!r:.60} looks like a header below other rows; {remedy} if it "
        "is a row"
    )


class Keys(NamedTuple):
    """The keys of all rows, of which a row may lack some.

    names: in the order of their first use. spelling: keys that differ from an earlier one in case
    and outer space only, and stand in no row beside it -> the earlier one, which replaces them.
    """

    names: Mapping[str, None] = MappingProxyType({})
    spelling: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, rows: Iterable[Iterable[str]]) -> Self:
        """The keys of these rows."""
        rows = dict.fromkeys(map(tuple, rows))
        names = dict[str, None]()
        spelling = dict[str, str]()
        earlier = dict[str, str]()
        for key in dict.fromkeys(chain.from_iterable(rows)):
            name = earlier.setdefault(plain_name(key), key)
            if name == key or any(name in row and key in row for row in rows):
                names[key] = None
            else:
                spelling[key] = name
        return cls(names, spelling)

    def respell(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the earlier spelling of its keys."""
        if not self.spelling:
            return row
        return {self.spelling.get(key, key): value for key, value in row.items()}

    def notes(self, columns: Collection[str]) -> list[str]:
        """The other spellings of these columns as phrases of a report."""
        return [
            f"{key!r:.40} read as {name!r:.40}"
            for key, name in self.spelling.items()
            if name in columns
        ]


def object_keys(file: str, kind: str, settings: DataSettings) -> Keys:
    """The keys of all objects of a JSONL file, because a row may lack some. Empty for other kinds,
    whose rows have the same columns, and for standard input, which is read once.
    """
    if kind != "jsonl" or file == STANDARD_INPUT:
        return Keys()
    lines = check_first_lines(iter_lines(file, settings.max_line_bytes), file)
    rows = read_objects(lines, file)
    return Keys.of(row for _, _, row in rows if row is not None)


def read_objects(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[NumberedRow]:
    """The JSON object of each line."""
    for number, line in enumerate(lines, start=first_line):
        place = f"{name}:{number}"
        if not line.strip():
            yield number, place, None
            continue
        row = parse_json(line, name, number, "write one object per line")
        if not isinstance(row, dict):
            raise DataError(
                f"{place}: a JSON {type(row).__name__}, expected an object with named values"
            )
        yield number, place, row


def parse_json(text: str, name: str, line: int, remedy: str) -> Any:
    """The value in a text that begins at this line of a file. Raises DataError if it is not
    JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{name}:{line + error.lineno - 1}:{error.colno}"
        raise DataError(f"{place}: not valid JSON ({error.msg}); {remedy}") from None
    except (ValueError, RecursionError):
        raise DataError(
            f"{name}:{line}: not readable JSON (nested too deeply, or a number too long)"
        ) from None


def has_header(row: Mapping[str, Any], settings: DataSettings) -> bool:
    """Whether a row of a table is by the names of a header, and not by the numbers of the
    columns.
    """
    return bool(settings.header) or [*row] != [str(column) for column in range(len(row))]
