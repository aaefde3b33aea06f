"""Rows of a Parquet file, by `pyarrow`, which comes with the extra `datasets`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from trifold.data.lines import expand
from trifold.errors import DataError

_ROWS = 1024  # read at once: these, and not the file, are in memory


def groups(file: str) -> int:
    """The number of row groups: parts of the file that can be read on their own."""
    return int(_opened(file).num_row_groups)


def rows(
    file: str, field: str, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of groups [start, stop), numbered from 1 within the file, with the column that `field` is in.

    Raises DataError where `pyarrow` is not installed or the file is not what its name says.
    """
    table = _opened(file)
    chosen = range(start, table.num_row_groups if stop is None else stop)
    number = sum(table.metadata.row_group(group).num_rows for group in range(start))
    columns = [name for name in table.schema_arrow.names if name in (field, field.partition(".")[0])]
    try:
        # Without the column asked for all are read: the error then says which there are.
        for batch in table.iter_batches(_ROWS, row_groups=list(chosen), columns=columns or None):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except Exception as error:  # a dozen classes, of the library and of the system
        raise _damaged(file, error) from None


def _opened(file: str) -> Any:
    try:
        library = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        remedy = 'install it with `pip install "trifold[datasets]"`'
        raise DataError(f"{file}: Parquet files need the `pyarrow` library; {remedy}") from None
    try:
        return library.ParquetFile(expand(file))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except Exception as error:
        raise _damaged(file, error) from None


def _damaged(file: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0]
    return DataError(f"{file}: not a readable Parquet file ({reason}); copy or download it again")
