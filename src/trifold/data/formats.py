"""The formats of data files: names, suffixes, what a file holds, and how its rows are read."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trifold.errors import join_or

# The number of a line or row, its place for messages, and its columns; None for a blank line.
NumberedRow: TypeAlias = tuple[int, str, Mapping[str, Any] | None]


class FileFormat(NamedTuple):
    """A format of data files.

    suffixes: of its files, in lower case; "" is a file without one. holds: "documents" of raw text,
    "pairs", "rows" of labelled tasks; what holds pairs holds rows. reader: `module:function` in
    this package, which iterates over the rows of (file, settings); "" if `open_table` or
    `iter_part` reads it itself. in_folders: whether a folder stands for its files. delimiter: the
    usual one between its columns.
    """

    suffixes: tuple[str, ...]
    holds: tuple[str, ...]
    reader: str = ""
    in_folders: bool = True
    delimiter: str | None = None

    def load_reader(self) -> Callable[..., Iterator[NumberedRow]]:
        """The reader."""
        module, _, function = self.reader.partition(":")
        reader: Callable[..., Iterator[NumberedRow]] = getattr(
            import_module(f"trifold.data.{module}"), function
        )
        return reader


FILE_FORMATS: dict[str, FileFormat] = {
    "text": FileFormat(("", ".txt", ".text"), ("documents",)),
    "tsv": FileFormat((".tsv", ".tab"), ("pairs", "rows"), delimiter="\t"),
    "csv": FileFormat((".csv",), ("pairs", "rows"), delimiter=","),
    "jsonl": FileFormat((".jsonl", ".ndjson"), ("documents", "pairs", "rows")),
    "parquet": FileFormat((".parquet",), ("documents", "pairs", "rows")),
    "excel": FileFormat((".xlsx", ".xlsm"), ("pairs", "rows")),
    "conll": FileFormat(
        (".conll", ".conllu", ".bio", ".iob", ".iob2"), ("rows",), "conll:iter_conll"
    ),
    "squad": FileFormat((".json",), ("rows",), "squad:iter_squad", in_folders=False),
}

# Format -> the usual delimiter of tables.
DELIMITERS = {
    name: kind.delimiter for name, kind in FILE_FORMATS.items() if kind.delimiter is not None
}

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:
    FormatName = Literal[("auto", *FILE_FORMATS)]


def formats_holding(content: str) -> list[str]:
    """The names of the formats that hold this."""
    return [name for name, kind in FILE_FORMATS.items() if content in kind.holds]


def list_suffixes(content: str) -> str:
    """The first suffix of each format that holds this, as a phrase."""
    return join_or([FILE_FORMATS[name].suffixes[0] for name in formats_holding(content)])


def suffixes_of(content: str, *, in_folders: bool = False) -> dict[str, str]:
    """Suffix -> name of the formats that hold this. in_folders: only those of files that a folder
    stands for.
    """
    return {
        suffix: name
        for name in formats_holding(content)
        if FILE_FORMATS[name].in_folders or not in_folders
        for suffix in FILE_FORMATS[name].suffixes
    }
