"""Texts of the command line that are names of files, whose content a user expects to be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
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
LINES = "`trifold {command} - < {file}` reads its lines"
CONTENT = '`trifold {command} "$(cat {file})"` reads its text'


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


def check_no_files(texts: Sequence[str], command: str, reads: str = LINES) -> None:
    """Raises UsageError for a text that is the name of a file or a folder, or that looks like one.

    command: of the texts, such as "generate runs/demo". reads: the command that reads a file.
    """
    for text in texts:
        if problem := _problem(text, command, reads):
            raise UsageError(f"{text.strip()}: {problem}, and --text takes its name as a text")


def _problem(text: str, command: str, reads: str) -> str | None:
    """What a text is instead, with the remedy."""
    if is_path(Path.is_dir, text):
        path = str(_path_of(text))
        remedy = "name a file in it"
        if reads == LINES and list_files(path, TABLE_FORMATS):
            remedy = f"{_rows(command, path)} tables"
        return f"is a folder; {remedy}"
    if is_path(Path.is_file, text):
        path = str(_path_of(text))
        return f"is a file; {_remedy(path, command, reads)}"
    if not _is_name(text):
        return None
    if is_pattern(text):
        return "is a pattern of files; name the files, without quotes"
    return "no such file; check the path"


def _remedy(path: str, command: str, reads: str) -> str:
    """How the content of a file is read."""
    suffix = Path(path).suffix.lower()
    if suffix in SUFFIXES:
        return "the model reads texts and no images"
    if suffix in ARCHIVES:
        return "name a file in it"
    if suffix in FORMAT_OF:
        return FORMAT_OF[suffix].remedy
    if reads == LINES and path.lower().endswith(_TABLES):
        return f"{_rows(command, path)} rows"
    return reads.format(command=command, file=shlex.quote(path))


_TABLES = tuple(
    suffix + packed for suffix in (*TABLE_FORMATS, ".json") for packed in ("", *COMPRESSED_SUFFIXES)
)


def _rows(command: str, path: str) -> str:
    """The beginning of a remedy, which ends with what is read: rows, or tables."""
    model = command.partition(" ")[2]
    return f"`trifold predict {model} {shlex.quote(path)} --out FILE.csv` reads its"
