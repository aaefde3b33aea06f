"""Read data: files, datasets of the hub and embedded text, as aligned pairs or as documents of raw text."""

from trifold.data.documents import (
    DocumentReport,
    Documents,
    DocumentSplits,
    hold_out_documents,
    read_document_splits,
    read_documents,
)
from trifold.data.files import FileDigest, compute_digests, list_files
from trifold.data.lines import expand_path, iter_lines, read_lines
from trifold.data.pairs import Pairs, Report, Splits, hold_out, read_pairs, read_splits
from trifold.data.settings import DataSettings, Source
from trifold.data.token_build import Encoder, Side
from trifold.data.token_cache import TokenCache, digests_in_caches, open_tokens, sample_documents

__all__ = [
    "DataSettings",
    "DocumentReport",
    "DocumentSplits",
    "Documents",
    "Encoder",
    "FileDigest",
    "Pairs",
    "Report",
    "Side",
    "Source",
    "Splits",
    "TokenCache",
    "compute_digests",
    "digests_in_caches",
    "expand_path",
    "hold_out",
    "hold_out_documents",
    "iter_lines",
    "list_files",
    "open_tokens",
    "read_document_splits",
    "read_documents",
    "read_lines",
    "read_pairs",
    "read_splits",
    "sample_documents",
]
