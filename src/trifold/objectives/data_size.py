"""Estimates of the size of training data: files that are small enough are read, of larger ones only
the sizes.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from itertools import chain, groupby, islice
from typing import Any

import numpy as np

from trifold.data import DataSettings, expand_path, iter_lines, list_files
from trifold.data.archives import stored_size
from trifold.data.dialects import csv_records
from trifold.data.files import FOLDER_FORMATS, FORMATS
from trifold.data.frames import Frame
from trifold.data.lines import inner_suffix
from trifold.data.tables import open_table
from trifold.errors import TrifoldError
from trifold.objectives import settings_class

LARGE = 20_000_000  # bytes of files from which on only their sizes are read
TABLES = ("excel", "parquet")  # formats of rows that are no lines of text
LARGEST_TABLE = 2_000_000  # bytes of such a file, whose rows are read
LONG_ROW = 512.0  # tokens of a long row of data whose rows are not known


def measure_texts(data: Mapping[str, Any], token_bytes: int, kind: str) -> tuple[int, float, int]:
    """Estimates of the tokens of the training data, of a long row, and of the number of rows, 0 if
    it is not known. What cannot be read, training reports.

    data: the group of a recipe. token_bytes: of a token on average. kind: of the task.
    """
    size = 0
    lengths = []
    source = data.get("train")
    with suppress(TrifoldError, OSError, TypeError, AttributeError):
        files = list_files(source, FOLDER_FORMATS[settings_class(kind).data_kind])
        size = sum(stored_size(expand_path(file)) for file in files)
        if size <= LARGE:
            rows = _iter_rows(source, files, kind)
            lengths = [len(row.encode()) / token_bytes + 2 for row in rows]
    tokens = int(sum(lengths)) or (size or LARGE) // token_bytes
    has_rows = data.get("documents", "line") == "line"
    if not (lengths and has_rows):
        return tokens, LONG_ROW, 0
    return tokens, float(np.percentile(lengths, 99)), len(lengths)


def _iter_rows(source: Any, files: Sequence[str], kind: str) -> Iterator[str]:
    """The rows of a table in memory or of files, about as long as the model reads them."""
    if isinstance(source, Frame):
        return _iter_cells(source)
    lines = chain.from_iterable(map(_iter_records, files))
    return _join_words(lines) if kind == "tag" else lines


def _iter_cells(frame: Frame) -> Iterator[str]:
    """The records of the CSV file with the same rows, so that both get the same defaults."""
    header = islice(frame.rows(), 1)
    for cells in chain(header, map(dict.values, frame.rows())):
        line = StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        yield line.getvalue()


def _iter_records(file: str) -> Iterator[str]:
    """The lines of a file, or the records of CSV, whose texts may have several lines; the rows of a
    small workbook or Parquet file.
    """
    kind = FORMATS.get(inner_suffix(file))
    if kind in TABLES:
        is_small = stored_size(expand_path(file)) <= LARGEST_TABLE
        rows = open_table(file, kind, DataSettings()).rows if is_small else iter(())
        return (" ".join(map(str, row.values())) for _, _, row in rows if row)
    lines = iter_lines(file, LARGE, allow_empty=True)
    if kind != "csv":
        return lines
    return (record for _, record in csv_records(lines, file, LARGE))


def _join_words(lines: Iterable[str]) -> Iterator[str]:
    """The sentences of files in columns, whose first one holds the words; JSON lines as they
    are.
    """
    for (is_blank, is_object), block in groupby(
        lines, lambda line: (not line.strip(), line.startswith("{"))
    ):
        if is_object:
            yield from block
        elif not is_blank:
            yield " ".join(line.split(maxsplit=1)[0] for line in block)
