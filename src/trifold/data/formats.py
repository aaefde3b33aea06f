"""The formats of data files: names, suffixes, what a file holds, and how its rows are read."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trifold.errors import join_or


class FileFormat(NamedTuple):
    """A format of data files.

    suffixes: of its files, in lower case; "" is a file without one. holds: "documents" of raw text,
    "pairs", "rows" of labelled tasks; what holds pairs holds rows. reader: `module:function` in
    this package, which iterates over the rows of (file, settings); "" if `open_table` or
    `iter_part` reads it itself. in_folders: whether a folder stands for its files.
    """

    suffixes: tuple[str, ...]
    holds: tuple[str, ...]
    reader: str = ""
    in_folders: bool = True

    def load_reader(self) -> Callable[..., Any]:
        """The reader."""
        module, _, function = self.reader.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"trifold.data.{module}"), function)
        return found


FILE_FORMATS: dict[str, FileFormat] = {
    "text": FileFormat(("", ".txt", ".text"), ("documents",)),
    "tsv": FileFormat((".tsv", ".tab"), ("pairs", "rows")),
    "csv": FileFormat((".csv",), ("pairs", "rows")),
    "jsonl": FileFormat((".jsonl", ".ndjson"), ("documents", "pairs", "rows")),
    "parquet": FileFormat((".parquet",), ("documents", "pairs", "rows")),
    "conll": FileFormat(
        (".conll", ".conllu", ".bio", ".iob", ".iob2"), ("rows",), "conll:iter_conll"
    ),
    "squad": FileFormat((".json",), ("rows",), "squad:iter_squad", in_folders=False),
}

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:
    FormatName = Literal[("auto", *FILE_FORMATS)]


def list_suffixes(content: str) -> str:
    """The first suffix of each format that holds this, as a phrase."""
    holding = [each for each in FILE_FORMATS.values() if content in each.holds]
    return join_or([each.suffixes[0] for each in holding])


def suffixes_of(content: str, *, in_folders: bool = False) -> dict[str, str]:
    """Suffix -> name of the formats that hold this. in_folders: only those of files that a folder
    stands for.
    """
    return {
        suffix: name
        for name, each in FILE_FORMATS.items()
        if content in each.holds and (each.in_folders or not in_folders)
        for suffix in each.suffixes
    }
