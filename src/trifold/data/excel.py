"""Rows of Excel workbooks (.xlsx): the first sheet, as the CSV file of it would be."""

import importlib
import zipfile
from collections.abc import Iterator
from datetime import datetime, time
from io import BytesIO
from typing import Any, BinaryIO

from trifold.data.archives import open_stored
from trifold.data.lines import expand_path
from trifold.errors import DataError
from trifold.installation import install_command

MAX_BYTES = 2**29  # of a workbook when it is unpacked, whose texts are in memory at once
MAX_ROWS = 2**20  # of a sheet, in the format


def iter_sheet(file: str, notes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The number of each row from 1 and its cells as texts, without empty ones at the end; a row
    without any is [""]. Formulas have the values that Excel has stored.

    notes: if the workbook has other sheets, a phrase about it is appended before the first row.
    Raises DataError if openpyxl is not installed, and for a workbook that is damaged or too large.
    """
    try:
        library = importlib.import_module("openpyxl")
    except ModuleNotFoundError:
        raise DataError(
            f"{file}: Excel workbooks need the `openpyxl` library; install it with "
            f"`{install_command('excel')}`, or save it as CSV in UTF-8"
        ) from None
    try:
        with open_stored(expand_path(file)) as stored:
            content = stored if stored.seekable() else BytesIO(stored.read(MAX_BYTES))
            _check_size(content, file)
            book = library.load_workbook(content, read_only=True, data_only=True, keep_links=False)
            first, *others = book.worksheets
            if others:
                notes.append(f"sheet {first.title!r:.40} of {len(others) + 1:,}")
            first.reset_dimensions()  # which the file states, and need not be those of the cells
            yield from _without_blank_end(first.iter_rows(max_row=MAX_ROWS, values_only=True))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except Exception as error:  # the library raises many unrelated classes
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{file}: not a readable Excel workbook ({reason:.80}); open it in a spreadsheet "
            "program, and save it as CSV in UTF-8"
        ) from None


def _check_size(content: BinaryIO, file: str) -> None:
    """Raise DataError for a workbook that unpacks to more than MAX_BYTES. A part cannot unpack to
    more than the archive states.
    """
    with zipfile.ZipFile(content) as archive:
        size = sum(part.file_size for part in archive.infolist())
    if size > MAX_BYTES:
        raise DataError(
            f"{file}: unpacks to {size:,} bytes, and at most {MAX_BYTES:,} are read; save it as "
            "CSV in UTF-8"
        )


def _without_blank_end(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, list[str]]]:
    """The rows with their numbers, without blank ones at the end."""
    n_yielded = 0
    for number, values in enumerate(rows, start=1):
        cells = [*map(_text, values)]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        yield from ((blank, [""]) for blank in range(n_yielded + 1, number))
        yield number, cells
        n_yielded = number


def _text(value: Any) -> str:
    """A cell as Excel writes it to CSV, with dates as in ISO 8601."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float():
            return format(value, ".15g")
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
    return str(value)
