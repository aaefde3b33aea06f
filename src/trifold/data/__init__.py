"""Files, hub datasets and embedded text, read into aligned pairs of sentences."""

from trifold.data.lines import iter_lines, read_lines
from trifold.data.readers import Pairs, Report, Row, Splits, hold_out, iter_rows, read_pairs, read_splits
from trifold.data.settings import DataSettings

__all__ = [
    "DataSettings",
    "Pairs",
    "Report",
    "Row",
    "Splits",
    "hold_out",
    "iter_lines",
    "iter_rows",
    "read_lines",
    "read_pairs",
    "read_splits",
]
