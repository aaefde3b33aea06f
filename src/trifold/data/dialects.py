"""How the rows of a table are written: what separates columns, and whether quotes enclose them."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from trifold.data.headers import COMPARED_ROWS, header_place
from trifold.data.lines import STANDARD_INPUT, iter_lines, open_binary
from trifold.data.settings import DataSettings
from trifold.errors import DataError

DELIMITERS = {"csv": ",", "tsv": "\t"}
_OTHERS = ("\t", ";", "|", ",")  # delimiters of files with another suffix
_DELIMITER_LINE = re.compile(r'"?sep=(.)"?[;,\t]*', re.IGNORECASE)  # which Excel writes, or reads
_BOM = b"\xef\xbb\xbf"
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
        return stream.read(len(_BOM)) == _BOM


# --- delimiters -----------------------------------------------------------------------------------


def _find_delimiter(
    lines: Sequence[str], kind: str, default: str, settings: DataSettings, known: Container[str]
) -> str:
    """The delimiter under which the first lines have a header; else the one that divides all rows
    evenly; else that of the suffix.
    """
    raw = [line.split("\t") for line in lines]
    quoted = _complete_records(lines)

    def rows_of(delimiter: str) -> list[list[str]]:
        if kind == "tsv" and delimiter == "\t":
            return raw
        return [_cells(record, delimiter) or [] for record in quoted]

    candidates = [default, *(sign for sign in _OTHERS if sign != default)]
    rows = {sign: rows_of(sign) for sign in candidates}
    if any(len(row) > 1 for row in rows[default]) and kind == "tsv":
        return default
    for sign in candidates:
        place = header_place(rows[sign], settings, known)
        if place is not None and len(list(filter(None, rows[sign][place]))) > 1:
            return sign
    even = [sign for sign in candidates if _is_even(rows[sign])]
    if default in even and not _are_commas_of_texts(lines, default):
        return default
    # A text may contain semicolons, which spaces follow.
    others = [
        sign
        for sign in even
        if sign != default and (sign == "\t" or not any(f"{sign} " in line for line in lines))
    ]
    return others[0] if others and kind == "csv" and len(lines) > 1 else default


def _is_even(rows: Sequence[list[str]]) -> bool:
    """Whether all rows have the same number of columns, two or more."""
    widths = {len(row) for row in rows if row != [""]}
    return len(widths) == 1 and min(widths) > 1


def _are_commas_of_texts(lines: Sequence[str], delimiter: str) -> bool:
    """Whether each comma stands between digits or before a space."""
    return delimiter == "," and not any(
        re.search(r"(?<!\d),(?! )|,(?![\d ])", line) for line in lines
    )


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
    are_all = True
    are_needed = True
    is_spread = False
    count = 0
    widths = set[int]()
    try:
        for _, record in csv_records(lines, "", _READ_BYTES):
            widths.update(line.count("\t") for line in record.split("\n") if line)
            if '"' not in record and not are_all:
                continue
            fields, wrong = _parse(record, "\t")
            if wrong is not None:
                return False
            for field, is_quoted in fields:
                if not is_quoted:
                    are_all = are_all and _NUMBER.fullmatch(field) is not None
                    continue
                count += 1
                is_long = "\n" in field or "\t" in field
                is_spread = is_spread or (is_long and '"' not in field)
                are_needed = are_needed and (is_long or not field or '"' in field or "\r" in field)
            if not (are_all or are_needed or by_default):
                return False
    except DataError:  # a quote that is not closed
        return False
    # Where all lines have the same number of columns, a quotation has several lines, not a field.
    is_even = len(widths) == 1
    if is_even and is_spread and not are_all:
        return False
    is_certain = count > 0 and (are_needed or (are_all and widths != {0}))
    return is_certain or by_default


# The csv module is not used: even in strict mode it accepts a quote inside an unquoted field, it
# rejects a lone carriage return, and it reads an unclosed quote to the end of the file before it
# reports the line of that end.
def csv_records(lines: Iterable[str], name: str, max_bytes: int) -> Iterator[tuple[int, str]]:
    """The records of CSV, of one or several lines, with the numbers of their first lines."""
    numbered = enumerate(lines, start=1)
    for number, record in numbered:
        parts = [record]
        size = len(record)
        quotes = record.count('"')
        while quotes % 2:  # an open quote continues the record on the next line
            _, part = next(numbered, (0, None))
            if part is None or size > max_bytes:
                raise DataError(
                    f"{name}:{number}: a quote is opened and not closed; close it, or use TSV"
                )
            parts.append(part)
            size = size + len(part)
            quotes = quotes + part.count('"')
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


def _parse(record: str, delimiter: str) -> tuple[list[tuple[str, bool]], int | None]:
    """The fields of a record and whether each is in quotes, and the position of a quote in the
    wrong place.
    """
    pattern = _field_pattern(delimiter)
    fields = list[tuple[str, bool]]()
    position = 0
    while match := pattern.match(record, position):
        quoted, plain, end = match.groups()
        fields.append((plain, False) if quoted is None else (quoted.replace('""', '"'), True))
        if not end:
            return fields, None
        position = match.end()
    return fields, position


def _cells(record: str, delimiter: str) -> list[str] | None:
    """The fields of a record; None if a quote is in the wrong place."""
    fields, wrong = _parse(record, delimiter)
    return [field for field, _ in fields] if wrong is None else None


def csv_fields(record: str, delimiter: str, place: str) -> list[str]:
    """The fields of a record of CSV. Raises DataError if a quote is in the wrong place."""
    if '"' not in record:
        return record.split(delimiter)
    fields, wrong = _parse(record, delimiter)
    if wrong is not None:
        remedy = 'put the whole field in quotes and write "" for a quote in it'
        raise DataError(f"{place}: a quote in the wrong place near character {wrong + 1}; {remedy}")
    return [field for field, _ in fields]
