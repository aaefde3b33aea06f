"""Rows of Parquet files."""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from trifold.data.archives import open_stored, split_member
from trifold.data.formats import NumberedRow
from trifold.data.hub_datasets import import_library, names_in_metadata, with_names
from trifold.data.lines import FileRange, expand_path
from trifold.errors import DataError
from trifold.folders import check_regular

_BATCH_ROWS = 1024  # rows in memory at once


def count_row_groups(file: str) -> int:
    """The number of row groups of a Parquet file. Raises DataError if it cannot be read."""
    return int(_open_parquet(file).num_row_groups)


def iter_parquet(file: str, field: str, part: FileRange) -> Iterator[NumberedRow]:
    """The rows of some row groups, numbered from 1 within the file, with the column of `field`.
    Classes that the library `datasets` has numbered have their names.

    Raises DataError if pyarrow is not installed, the file is damaged, or two columns have one name.
    """
    table = _open_parquet(file)
    stop = table.num_row_groups if part.stop is None else part.stop
    row_groups = range(part.start, stop)
    number = sum(table.metadata.row_group(group).num_rows for group in range(part.start))
    columns = [
        name for name in table.schema_arrow.names if name in (field, field.partition(".")[0])
    ]
    repeated = [name for name, count in Counter(table.schema_arrow.names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{file}: two columns are named {repeated[0]!r:.60}; rename one of them, and write the "
            "file again"
        )
    names = names_in_metadata(table.schema_arrow.metadata or {})
    try:
        # If the column is missing, all are read, so that the error can list them.
        batches = table.iter_batches(_BATCH_ROWS, row_groups=[*row_groups], columns=columns or None)
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, f"{file}, row {number}", with_names(row, names)
    except Exception as error:  # the library raises many unrelated classes
        raise _parquet_error(file, error) from None


def _open_parquet(file: str) -> Any:
    library = import_library("pyarrow.parquet", f"{file}: Parquet files need the `pyarrow` library")
    path = expand_path(file)
    try:
        if split_member(path) is None:
            check_regular(path)
            return library.ParquetFile(path)
        with open_stored(path) as member:
            return library.ParquetFile(BytesIO(member.read()))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except DataError:
        raise
    except Exception as error:
        raise _parquet_error(file, error) from None


def _parquet_error(file: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0]
    return DataError(f"{file}: not a readable Parquet file ({reason}); copy or download it again")
