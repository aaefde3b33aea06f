"""How the rows of a table are written: what separates columns, and whether quotes enclose them."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from trifold.data.formats import DELIMITERS
from trifold.data.headers import COMPARED_ROWS, header_place
from trifold.data.lines import BOM, STANDARD_INPUT, iter_lines, open_binary
from trifold.data.settings import DataSettings
from trifold.errors import DataError

_CANDIDATES = ("\t", ";", "|", ",")  # delimiters that are tried after that of the suffix
_DELIMITER_LINE = re.compile(r'"?sep=(.)"?[;,\t]*', re.IGNORECASE)  # which Excel writes, or reads
_READ_BYTES = 1 << 20
_NUMBER = re.compile(r"[-+]?[0-9]*[.,]?[0-9]*(?:[eE][-+]?[0-9]+)?|NA|TRUE|FALSE")


class Dialect(NamedTuple):
    """How a table is written.

    delimiter: between columns. has_quotes: whether quotes enclose fields that contain delimiters,
    line ends or doubled quotes; otherwise they are part of the text. has_bom: whether the file
    begins with a byte order mark.
    """

    delimiter: str
    has_quotes: bool
    has_bom: bool = False

    def describe(self, kind: str) -> list[str]:
        """What is unusual in a file of kind `csv` or `tsv`, in words."""
        unusual = []
        if self.delimiter != DELIMITERS[kind]:
            name = "tabs" if self.delimiter == "\t" else repr(self.delimiter)
            unusual.append(f"separated by {name}")
        if self.has_quotes and kind == "tsv":
            unusual.append("fields in quotes")
        return unusual


def find_dialect(
    file: str,
    kind: str,
    first_lines: Sequence[str],
    settings: DataSettings,
    known: Container[str] = (),
) -> Dialect:
    """The dialect of a file of kind `csv` or `tsv`, whose first lines were read.

    Fields of CSV may be in quotes; of a table with tabs, if all of its quotes enclose fields, as
    pandas and the csv module write them.
    """
    default = DELIMITERS[kind]
    if first_lines and (match := _DELIMITER_LINE.fullmatch(first_lines[0])):
        default = match[1]
        first_lines = first_lines[1:]
    delimiter = settings.delimiter or _find_delimiter(first_lines, kind, default, settings, known)
    has_quotes = _quotes_enclose(file, kind, delimiter, first_lines, settings)
    return Dialect(delimiter, has_quotes, has_bom(file))


def is_delimiter_line(line: str) -> bool:
    """Whether a line is `sep=;` or its like, which names the delimiter of a table to Excel."""
    return _DELIMITER_LINE.fullmatch(line) is not None


def has_bom(file: str) -> bool:
    """Whether a file begins with the byte order mark of UTF-8; unknown of standard input."""
    if file == STANDARD_INPUT:
        return False
    with open_binary(file, file) as stream:
        return stream.read(len(BOM)) == BOM


# --- delimiters -----------------------------------------------------------------------------------


def _find_delimiter(
    lines: Sequence[str], kind: str, default: str, settings: DataSettings, known: Container[str]
) -> str:
    """The delimiter under which the first lines have a header; else the one that divides all rows
    evenly; else that of the suffix.
    """
    candidates = [default, *(sign for sign in _CANDIDATES if sign != default)]
    rows = _divide_rows(lines, kind, candidates)
    if kind == "tsv" and any(len(row) > 1 for row in rows[default]):
        return default
    by_names = settings
    if settings.header:  # then any row may be one, under any delimiter
        by_names = settings.model_copy(update={"header": None})
    for sign in candidates:
        if _has_header(rows[sign], by_names, known):
            return sign
    even = [sign for sign in candidates if _is_even(rows[sign])]
    if default in even and not _are_commas_of_texts(lines, default):
        return default
    others = [sign for sign in even if sign != default and not _is_of_texts(sign, rows[sign])]
    if others and kind == "csv" and len(lines) > 1:
        return others[0]
    return default


def _divide_rows(
    lines: Sequence[str], kind: str, delimiters: Iterable[str]
) -> dict[str, list[list[str]]]:
    """The rows under each delimiter; one with a quote in the wrong place has no cells."""
    records = _complete_records(lines)
    rows = {sign: [_cells(record, sign) or [] for record in records] for sign in delimiters}
    if kind == "tsv" and "\t" in rows:
        rows["\t"] = [line.split("\t") for line in lines]
    return rows


def _has_header(rows: Sequence[list[str]], settings: DataSettings, known: Container[str]) -> bool:
    """Whether a header of several columns is above the rows."""
    index = header_place(rows, settings, known)
    return index is not None and sum(map(bool, rows[index])) > 1


def _is_even(rows: Sequence[list[str]]) -> bool:
    """Whether all rows have the same number of columns, two or more."""
    widths = {len(row) for row in rows if row != [""]}
    return len(widths) == 1 and min(widths) > 1


def _are_commas_of_texts(lines: Sequence[str], delimiter: str) -> bool:
    """Whether each comma stands between digits or before a space."""
    return delimiter == "," and not any(
        re.search(r"(?<!\d),(?! )|,(?![\d ])", line) for line in lines
    )


def _is_of_texts(delimiter: str, rows: Sequence[list[str]]) -> bool:
    """Whether a sign stands before a space, as a semicolon in a text does. In quotes it is part of
    a cell.
    """
    cells = [cell for row in rows for cell in row[1:]]
    return delimiter != "\t" and any(cell.startswith(" ") for cell in cells)


# --- quotes ---------------------------------------------------------------------------------------


def _quotes_enclose(
    file: str, kind: str, delimiter: str, first_lines: Sequence[str], settings: DataSettings
) -> bool:
    if delimiter != "\t":
        return True
    by_default = kind == "csv"
    if file == STANDARD_INPUT:
        return quotes_enclose(first_lines, by_default=by_default)
    with open_binary(file, file) as stream:
        while (block := stream.read(_READ_BYTES)) and b'"' not in block:
            continue
    if not block:
        return by_default
    return quotes_enclose(iter_lines(file, settings.max_line_bytes), by_default=by_default)


def quotes_enclose(lines: Iterable[str], *, by_default: bool = False) -> bool:
    """Whether the quotes of a table with tabs enclose fields and are no part of texts.

    A quote in another place is part of a text. Quotes enclose fields for certain if all fields that
    are not numbers have them, or only those that need them; a quotation has them without need.
    by_default: the answer if neither is certain.
    """
    quotes = _Quotes()
    try:
        for _, record in csv_records(lines, "", _READ_BYTES):
            if not quotes.add(record):
                return False
            if not (quotes.are_all or quotes.are_needed or by_default):
                return False
    except DataError:  # a quote that is not closed
        return False
    # If all lines have the same number of tabs, each line is a row, and quotes around several lines
    # or columns are those of a quotation.
    if len(quotes.widths) == 1 and quotes.are_spread and not quotes.are_all:
        return False
    return quotes.are_certain or by_default


@dataclass
class _Quotes:
    """What the quotes in the records of a table with tabs tell.

    are_all: whether all fields that are not numbers are in quotes. are_needed: whether all fields
    in quotes need them. are_spread: whether one extends over lines or columns, without a quote
    inside. count: fields in quotes. widths: the numbers of tabs in the lines.
    """

    are_all: bool = True
    are_needed: bool = True
    are_spread: bool = False
    count: int = 0
    widths: set[int] = field(default_factory=set)

    @property
    def are_certain(self) -> bool:
        """Whether the quotes enclose fields for certain."""
        has_columns = self.widths != {0}
        return self.count > 0 and (self.are_needed or (self.are_all and has_columns))

    def add(self, record: str) -> bool:
        """Look at the fields of a record. Returns whether each quote is in its place."""
        self.widths.update(line.count("\t") for line in record.split("\n") if line)
        if '"' not in record and not self.are_all:
            return True
        fields, wrong = _parse(record, "\t")
        if wrong is not None:
            return False
        for content, is_quoted in fields:
            if is_quoted:
                self._add_quoted(content)
            elif self.are_all:
                self.are_all = _NUMBER.fullmatch(content) is not None
        return True

    def _add_quoted(self, content: str) -> None:
        self.count += 1
        has_quote = '"' in content
        is_long = "\n" in content or "\t" in content
        needs_quotes = is_long or has_quote or not content or "\r" in content
        self.are_spread = self.are_spread or (is_long and not has_quote)
        self.are_needed = self.are_needed and needs_quotes


# The csv module is not used: even in strict mode it accepts a quote inside an unquoted field, it
# rejects a lone carriage return, and it reads an unclosed quote to the end of the file before it
# reports the line of that end.
def csv_records(lines: Iterable[str], name: str, max_bytes: int) -> Iterator[tuple[int, str]]:
    """The records of CSV, of one or several lines, with the numbers of their first lines."""
    numbered = enumerate(lines, start=1)
    for number, line in numbered:
        parts = [line]
        size = len(line)
        quotes = line.count('"')
        while quotes % 2:  # an open quote continues the record on the next line
            _, part = next(numbered, (0, None))
            if part is None or size > max_bytes:
                raise DataError(
                    f"{name}:{number}: a quote is opened and not closed; close it, or use TSV"
                )
            parts.append(part)
            size += len(part)
            quotes += part.count('"')
        yield number, "\n".join(parts)


def _complete_records(lines: Sequence[str]) -> list[str]:
    """The records of CSV up to one that is not complete."""
    found = list[str]()
    with suppress(DataError):
        found.extend(record for _, record in csv_records(lines, "", len("".join(lines))))
    return found[:COMPARED_ROWS]


@cache
def _field_pattern(delimiter: str) -> re.Pattern[str]:
    # A quoted field may contain delimiters, line ends and doubled quotes. The loop is unrolled to
    # avoid backtracking.
    sign = re.escape(delimiter)
    return re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|([^"{sign}]*))({sign}|\Z)')


@cache
def _fields_pattern(delimiter: str) -> re.Pattern[str]:
    # The same with the quotes in one group, for all fields in one call. What follows a quote in the
    # wrong place matches as a whole, so that no other start is tried in it.
    sign = re.escape(delimiter)
    return re.compile(rf'("[^"]*(?:""[^"]*)*"|[^"{sign}]*)(?:{sign}|\Z)|.+', re.DOTALL)


def _find_fields(record: str, delimiter: str) -> list[str] | None:
    """The fields of a record with quotes; None if `_parse` has to look for one in the wrong
    place.
    """
    found = _fields_pattern(delimiter).findall(record)
    if len(found) > 1 and not found[-1] and not record.endswith(delimiter):
        found.pop()  # the empty match after the end
    if delimiter.join(found) != record:
        return None
    return [field[1:-1].replace('""', '"') if field.startswith('"') else field for field in found]


def _parse(record: str, delimiter: str) -> tuple[list[tuple[str, bool]], int | None]:
    """The fields of a record and whether each is in quotes, and the position of a quote in the
    wrong place.
    """
    pattern = _field_pattern(delimiter)
    fields = list[tuple[str, bool]]()
    position = 0
    while match := pattern.match(record, position):
        quoted, plain, end = match.groups()
        if quoted is None:
            fields.append((plain, False))
        else:
            fields.append((quoted.replace('""', '"'), True))
        if not end:
            return fields, None
        position = match.end()
    return fields, position


def _cells(record: str, delimiter: str) -> list[str] | None:
    """The fields of a record; None if a quote is in the wrong place."""
    fields, wrong = _parse(record, delimiter)
    if wrong is not None:
        return None
    return [content for content, _ in fields]


def csv_fields(record: str, delimiter: str, place: str) -> list[str]:
    """The fields of a record of CSV. Raises DataError if a quote is in the wrong place."""
    if '"' not in record:
        return record.split(delimiter)
    found = _find_fields(record, delimiter)
    if found is not None:
        return found
    fields, wrong = _parse(record, delimiter)
    if wrong is not None:
        remedy = 'put the whole field in quotes and write "" for a quote in it'
        raise DataError(f"{place}: a quote in the wrong place near character {wrong + 1}; {remedy}")
    return [content for content, _ in fields]
