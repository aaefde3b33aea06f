"""Files, hub datasets and embedded text, read into aligned pairs of sentences or into documents of raw text."""

from trifold.data.documents import (
    DocumentReport,
    Documents,
    DocumentSplits,
    hold_out_documents,
    iter_documents,
    read_document_splits,
    read_documents,
)
from trifold.data.lines import iter_lines, read_lines
from trifold.data.readers import Pairs, Report, Row, Splits, hold_out, iter_rows, read_pairs, read_splits
from trifold.data.settings import DataSettings
from trifold.data.token_build import Encoder
from trifold.data.token_cache import TokenCache, open_tokens

__all__ = [
    "DataSettings",
    "DocumentReport",
    "DocumentSplits",
    "Documents",
    "Encoder",
    "Pairs",
    "Report",
    "Row",
    "Splits",
    "TokenCache",
    "hold_out",
    "hold_out_documents",
    "iter_documents",
    "iter_lines",
    "iter_rows",
    "open_tokens",
    "read_document_splits",
    "read_documents",
    "read_lines",
    "read_pairs",
    "read_splits",
]
