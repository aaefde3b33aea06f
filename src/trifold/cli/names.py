"""Texts of the command line that are names of files, whose content a user expects to be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from trifold.data.files import TABLE_FORMATS, TEXT_FORMATS, list_files
from trifold.data.foreign import FORMAT_OF
from trifold.data.images import SUFFIXES
from trifold.data.lines import COMPRESSED_SUFFIXES, expand_path
from trifold.errors import TrifoldError, UsageError

ARCHIVES = (".zip", ".tar", ".tgz")
DOCUMENTS = (".xls", ".ods", ".docx", ".doc", ".odt", ".pdf")
PATTERN_SIGNS = "*?["
# A text that ends like this and has no space is the name of a file, though there may be none.
_NAMES = (
    *filter(None, TEXT_FORMATS),
    *TABLE_FORMATS,
    *SUFFIXES,
    *ARCHIVES,
    *DOCUMENTS,
    *COMPRESSED_SUFFIXES,
)
LINES = "`trifold {command} -{options} < {file}` reads its lines"
CONTENT = '`trifold {command} "$(cat {file})"{options}` reads its text'


def is_path(kind: Callable[[Path], bool], name: str) -> bool:
    """Whether a text is the name of a path of this kind, such as `Path.is_file`."""
    with suppress(OSError, ValueError, RuntimeError, TrifoldError):  # too long, or not a name
        return kind(_path_of(name))
    return False


def is_pattern(name: str) -> bool:
    """Whether a text is a pattern of files, such as *.csv, and not a file."""
    has_sign = any(sign in name for sign in PATTERN_SIGNS)
    return has_sign and _is_name(name) and not is_path(Path.exists, name)


def _is_name(text: str) -> bool:
    return text.lower().endswith(_NAMES) and not re.search(r"\s", text.strip())


def _path_of(name: str) -> Path:
    """The path in a text, which may be a URL `file://` or have space around it."""
    name = name.strip()
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://").removeprefix("localhost"))
    return expand_path(name) if name else Path("\0")  # which cannot exist


class Typed(NamedTuple):
    """A command that was typed, such as "generate runs/demo"; its options, each after a space; and
    the command that reads a file.
    """

    command: str
    options: str = ""
    reads: str = LINES


def check_no_files(texts: Sequence[str], typed: Typed) -> None:
    """Raises UsageError for a text that is the name of a file or a folder, or that looks like
    one.
    """
    for text in texts:
        if problem := _problem(text, typed):
            raise UsageError(f"{text.strip()}: {problem}, and --text takes its name as a text")


def _problem(text: str, typed: Typed) -> str | None:
    """What a text is instead, with the remedy."""
    if is_path(Path.is_dir, text):
        path = str(_path_of(text))
        remedy = "name a file in it"
        if typed.reads == LINES and list_files(path, TABLE_FORMATS):
            remedy = f"{_rows(typed, path)} tables"
        return f"is a folder; {remedy}"
    if is_path(Path.is_file, text):
        path = str(_path_of(text))
        return f"is a file; {_remedy(path, typed)}"
    if not _is_name(text):
        return None
    if is_pattern(text):
        return "is a pattern of files; name the files, without quotes"
    return "no such file; check the path"


def _remedy(path: str, typed: Typed) -> str:
    """How the content of a file is read."""
    suffix = Path(path).suffix.lower()
    if suffix in SUFFIXES:
        return "the model reads texts and no images"
    if suffix in ARCHIVES:
        return "name a file in it"
    if suffix in FORMAT_OF:
        return FORMAT_OF[suffix].remedy
    if typed.reads == LINES and path.lower().endswith(_TABLES):
        return f"{_rows(typed, path)} rows"
    return typed.reads.format(command=typed.command, options=typed.options, file=shlex.quote(path))


_TABLES = tuple(
    suffix + packed for suffix in (*TABLE_FORMATS, ".json") for packed in ("", *COMPRESSED_SUFFIXES)
)


def _rows(typed: Typed, path: str) -> str:
    """The beginning of a remedy, which ends with what is read: rows, or tables."""
    model = typed.command.partition(" ")[2]
    options = " --out FILE.csv"
    if typed.command.startswith("predict "):
        options = typed.options
        if not re.search(r" --out \S+\.(csv|tsv|jsonl|conll)\b", options):
            options = re.sub(r" --out \S+|$", " --out FILE.csv", options, count=1)
    return f"`trifold predict {model} {shlex.quote(path)}{options}` reads its"


def is_recipe(name: str) -> bool:
    """Whether a name is that of an included recipe or of a recipe file, and of no folder."""
    from trifold.recipe import included_names

    path = Path(name)
    if path.is_dir():
        return False
    return path.suffix in (".yaml", ".yml") or name in included_names()
