"""Where the rows of a table begin: its header, titles above it, and empty columns at its end."""

import re
from collections.abc import Container, Sequence
from typing import NamedTuple

from trifold.data.settings import DataSettings

# A first row is a header if each cell looks like a name (_NAME), and two consist of words in _WORDS
# or all are codes of languages (_CODES).
_NAME = re.compile(r"#?\w+(?:[ .#-]\w+){0,2}(?: ?#)?")
# Best first.
LABELS = "label labels class category sentiment topic intent genre rating stars score".split()
TEXTS = (
    "text sentence review comment tweet utterance message post content body article document"
).split()
# Of columns that number or identify rows; "" for `#`.
NUMBERS = frozenset(
    [
        "",
        *"id ids nr no num number nummer index idx key uuid guid row rowid row_id line lfd".split(),
    ]
)
_WORDS = {*LABELS, *TEXTS} | set(
    "answer completion context hypothesis id input klasse kommentar output premise prompt query "
    "question sentence1 "
    "sentence2 source src summary target tgt title translation trg arabic chinese czech danish "
    "deutsch dutch english "
    "englisch finnish français french german greek hindi hungarian italian japanese korean "
    "norwegian polish portuguese "
    "romanian russian spanish swedish turkish ukrainian".split()
)
_CODES = frozenset(
    "ar bg cs da de el en es fi fr he hi hu ja ko nl pl pt ro ru sv th tr uk vi zh".split()
)
COMPARED_ROWS = 200  # which decide about a header, and about empty columns
UNNAMED = re.compile(r"unnamed: \d+")  # how pandas names an index without a name
_TITLE_ROWS = 10  # at most, above a header
_LONGEST_NAME = 40  # characters


class Header(NamedTuple):
    """The names of the columns of a table, none without a header, and what surrounds them.

    skipped: indices of the rows that are no data. width: the number of columns. is_padded: whether
    rows may have more cells, which are empty.
    """

    names: list[str]
    skipped: frozenset[int]
    width: int
    is_padded: bool


def find_header(
    rows: Sequence[list[str]], settings: DataSettings, known: Container[str] = ()
) -> Header:
    """The header of the first rows of a table; a blank line is [""].

    known: names of columns, in lower case, which indicate a header.
    """
    if not rows:
        return Header([], frozenset(), 0, is_padded=False)
    index = header_place(rows, settings, known)
    first_index = next((index for index, row in enumerate(rows) if row != [""]), 0)
    names: list[str] = []
    skipped = set[int]()
    if index is not None:
        names = rows[index]
        # Titles are above a header that is not first.
        skipped = {index} if index == first_index else {*range(index + 1)}
    data = [row for row in rows[max(skipped, default=-1) + 1 :] if row not in ([""], names)]
    width, is_padded = _measure(names or rows[first_index], data, is_named=bool(names))
    if names and _has_row_names(width, data):
        names = ["", *names]
        width = width + 1
    return Header(names[:width], frozenset(skipped), width, is_padded)


def header_place(
    rows: Sequence[list[str]], settings: DataSettings, known: Container[str]
) -> int | None:
    """The index of the header in the first rows of a table, which may have titles above it."""
    if settings.header is False:
        return None
    indices = [index for index, row in enumerate(rows) if row != [""]]
    most = 0  # cells of the rows above that are not empty
    for index in indices[: _TITLE_ROWS + 1]:
        row = rows[index]
        count = sum(map(bool, row))
        is_first = index == indices[0]
        is_below_titles = count > max(most, 1) or (
            rows[index - 1] == [""] and has_known_names(row, known)
        )
        if (is_first or is_below_titles) and _is_header(
            row, rows[index + 1 :], settings, known, is_first=is_first
        ):
            return index
        most = max(most, count)
    if settings.header and indices:
        return indices[0]
    return None


def _is_header(
    row: list[str],
    following: Sequence[list[str]],
    settings: DataSettings,
    known: Container[str],
    *,
    is_first: bool,
) -> bool:
    if settings.header:
        # A title above the header has a single cell.
        has_more = any(sum(map(bool, other)) > 1 for other in following[:_TITLE_ROWS])
        return not is_first or sum(map(bool, row)) > 1 or not has_more
    requested = {
        str(name) for name in (settings.source, settings.target, *settings.columns.values())
    }
    if any(name in row for name in requested if not name.isdigit()):
        return True
    return _has_names(row, known) and (
        has_known_names(row, known) or not _recurs_as_class(row, following)
    )


def _has_names(row: Sequence[str], known: Container[str]) -> bool:
    """Whether each cell is a name of a column or empty: pandas writes an index without a name, and
    spreadsheets write empty columns.
    """
    cells = [UNNAMED.sub("", plain_name(cell)) for cell in row]
    named = list(filter(None, cells))
    # Without regions: en_US, zh-Hant.
    codes = {re.sub(r"[_-][a-z]{2,4}$", "", cell) for cell in named}
    usual = sum(cell in known or _WORDS.issuperset(split_words(cell)) for cell in named)
    is_known = (bool(codes) and codes <= _CODES) or usual >= min(2, len(cells))
    return is_known and all(map(_NAME.fullmatch, named)) and len({*named}) == len(named)


def plain_name(cell: str) -> str:
    """The name of a column without differences of case and space at its ends."""
    return cell.strip().casefold()


def has_known_names(row: Sequence[str], known: Container[str]) -> bool:
    """Whether two cells are names of columns that the task reads, and the others look like
    names.
    """
    return (
        max(map(len, row), default=0) <= _LONGEST_NAME
        and sum(plain_name(cell) in known for cell in row) > 1
        and _has_names(row, known)
    )


def _recurs_as_class(row: Sequence[str], following: Sequence[list[str]]) -> bool:
    """Whether a cell occurs again in a column of few different values, so that it is one of
    them. In a column of texts, a name may be a text.
    """
    others = [other for other in following if other != row]  # joined files repeat their header
    for column, cell in enumerate(row):
        values = [cell, *(other[column] for other in others if column < len(other))]
        if cell in filter(None, values[1:]) and 3 * len({*values}) <= 2 * len(values):
            return True
    return False


def split_words(cell: str) -> list[str]:
    """The words of a name; the name itself if it has no letters."""
    return re.findall(r"[^\W\d_]+", cell) or [cell]


def _measure(first: list[str], data: list[list[str]], *, is_named: bool) -> tuple[int, bool]:
    """The number of columns, and whether empty cells may follow, as spreadsheets write them.

    first: the header, else the first row.
    """
    width = len(first) - _count_empty(first)
    if is_named and width < len(first):
        filled = sum(len(row) - _count_empty(row) > width for row in data)
        # A stray delimiter also fills such a column, so that most rows decide.
        if 2 * filled > len(data):
            return len(first), False
        return width, True
    if is_named or not data:
        is_padded = bool(data) and all(
            len(row) > width >= len(row) - _count_empty(row) for row in data
        )
        return len(first), is_padded
    is_even = all(len(row) == len(first) for row in data)
    empty = 0
    if is_even and len(data) > 1:
        empty = min(map(_count_empty, data))
    width = max(len(first) - empty, min(2, len(first)))
    return width, width < len(first)


def _count_empty(row: list[str]) -> int:
    """The number of empty cells at the end."""
    return next((n for n, cell in enumerate(reversed(row)) if cell), len(row))


def _has_row_names(width: int, data: list[list[str]]) -> bool:
    """Whether rows begin with their numbers and have one cell more than the header, as R writes
    them.
    """
    numbers = [str(number) for number in range(1, len(data) + 1)]
    return bool(data) and all(
        len(row) == width + 1 and row[0] == number
        for row, number in zip(data, numbers, strict=True)
    )
