"""Read data: files, datasets of the hub and embedded text, as aligned pairs, labelled rows or raw
documents.
"""

from trifold.data.dialects import Dialect
from trifold.data.documents import Documents, Splits, read_documents, read_splits
from trifold.data.files import FileDigest, compute_digests, list_files
from trifold.data.lines import expand_path, iter_lines
from trifold.data.pairs import read_pairs
from trifold.data.records import read_records
from trifold.data.reports import DocumentReport, RowReport
from trifold.data.roles import Role
from trifold.data.rows import Rows
from trifold.data.settings import DataSettings, Source
from trifold.data.tables import Table, open_table, read_dialect
from trifold.data.token_build import Encoder, Side
from trifold.data.token_cache import TokenCache, digests_in_caches, open_tokens, sample_documents

__all__ = [
    "DataSettings",
    "Dialect",
    "DocumentReport",
    "Documents",
    "Encoder",
    "FileDigest",
    "Role",
    "RowReport",
    "Rows",
    "Side",
    "Source",
    "Splits",
    "Table",
    "TokenCache",
    "compute_digests",
    "digests_in_caches",
    "expand_path",
    "iter_lines",
    "list_files",
    "open_table",
    "open_tokens",
    "read_dialect",
    "read_documents",
    "read_pairs",
    "read_records",
    "read_splits",
    "sample_documents",
]
