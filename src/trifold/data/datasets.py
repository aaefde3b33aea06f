"""Rows of datasets that are not files: of the Hugging Face hub (`hub:…`), of a Python program
(`python:…`), and embedded text (`embedded:…`).
"""

from collections import Counter
from collections.abc import Iterator

from trifold.data import embedded, frames, hub_datasets
from trifold.data.formats import NumberedRow
from trifold.data.tables import Keys, Table


def iter_dataset(source: str, split: str) -> Iterator[NumberedRow]:
    """The rows of `hub:…`, `python:…` or `embedded:…`; `split` is the split of an embedded source
    that names none.
    """
    if source.startswith("hub:"):
        return hub_datasets.iter_hub(source)
    if source.startswith(frames.PREFIX):
        return frames.iter_frame(source)
    return embedded.iter_rows(source, split)


def open_dataset(source: str, split: str, skipped: Counter[str]) -> tuple[Table, Keys]:
    """The rows of a dataset, and the keys of all rows if these may differ."""
    keys = Keys()
    has_columns = False
    if isinstance(source, frames.Frame):
        has_columns = source.is_table
        if not has_columns:
            keys = Keys.of(source.rows())
    return Table(iter_dataset(source, split), skipped, has_columns), keys
