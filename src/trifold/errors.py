"""Errors that a user can fix; the command line prints them as `error: …`.

A message states the value, the place (file:line:byte for data, dotted key for settings) and the
remedy. Internal errors stay `AssertionError`s with a traceback.
"""

import re
from collections.abc import Sequence
from textwrap import wrap

MAX_LINE, MAX_LINES = 2_000, 20  # characters of a line and lines of a message
COLUMNS = 80  # of lines for files and pipes
# Line separators, marks of direction, and marks that are not visible.
_INVISIBLE = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
# With control characters except tab and line feed, and lone surrogates.
UNPRINTABLE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}\ud800-\udfff]")


def escape(text: str) -> str:
    """The text with control characters and invisible marks as in a Python string."""
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def printable(text: str) -> str:
    """The escaped text of a message with untrusted values; long lines lose their middle, and many
    lines their end.
    """
    lines = escape(text).split("\n")
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1 :] = [f"  and {len(lines) - MAX_LINES + 1:,} more"]
    return "\n".join(map(_without_middle, lines))


def _without_middle(line: str) -> str:
    """The line, without its middle if it is too long."""
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:1300]} … {line[-600:]}"


def wrapped(text: str, columns: int | None = None) -> str:
    """The `printable` text in lines of `columns` (80) characters; words, and commands in backticks,
    stay whole.
    """
    lines = []
    size = columns or COLUMNS
    for line in printable(text).split("\n"):
        # Spaces at which a line may not be broken are "\0" until the end.
        line = re.sub(
            "^(?:error|warning): |`[^`]*`", lambda found: found[0].replace(" ", "\0"), line
        )
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        parts = wrap(
            line, size, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += parts or [""]
    return "\n".join(lines).replace("\0", " ")


def plural(count: int, noun: str) -> str:
    """`1 pair` or `1,234 pairs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_or(names: Sequence[str]) -> str:
    """`a`, `a or b`, or `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


# Options and commands in messages -> their names in Python.
PYTHON_NAMES = {
    "--resume auto": 'resume="auto"',
    "--data-changed": "data_changed=True",
    "--out": "`out`",
    "--overwrite": "overwrite=True",
    "`trifold predict`": "`predict`",
    "`trifold generate`": "`generate`",
    "trifold recipes": "trifold.recipe.recipe_names()",
    "leave out --to ": "leave out `to` ",
    "--num-beams 1": "num_beams=1",
    "--num-return-sequences 1": "num_return_sequences=1",
    "--stream ": "`stream` ",
    "--on-overflow truncate": 'on_overflow="truncate"',
    "--pooling mean": 'pooling="mean"',
    "--corpus FILE": "`texts`",
    "--weights bf16": 'weights="bf16"',
    "with --tokenizer": "with `tokenizer`",
}


class TrifoldError(Exception):
    """An error that a user can fix; `message` names options of the command line, and `str`
    arguments of Python.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        self.message = text = printable(message)
        for option, argument in PYTHON_NAMES.items():
            text = text.replace(option, argument)
        super().__init__(text)


class UsageError(TrifoldError):
    """The command line or the arguments are invalid (exit code 2)."""

    exit_code = 2


class NotEnoughMemoryError(UsageError):
    """A request that needs more memory than is available."""


def check_utf8(text: str, name: str) -> None:
    """Raise UsageError if the text, which `name` describes, contains bytes or characters that are
    not UTF-8.
    """
    # Python decodes such bytes of the command line as lone surrogates.
    if found := re.search("[\ud800-\udfff]", text):
        raise UsageError(
            f"{name}: character {found.start() + 1} is not valid UTF-8; correct or remove it"
        )


class SettingsError(UsageError):
    """A recipe or a config has an unknown key, a value of the wrong type, or a contradiction."""


class DataError(TrifoldError):
    """A data file is missing, invalid, empty or inconsistent with another one."""


class MissingColumnError(DataError):
    """A table does not have a column that the task reads."""


class CheckpointError(TrifoldError):
    """A model folder or a checkpoint is missing, damaged or of an unknown format."""


class OtherRankError(TrifoldError):
    """Another process of the run has failed, and this one exits too; reported: whether that one
    reports the error.
    """

    def __init__(self, message: str, exit_code: int = 1, *, reported: bool = True) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reported = reported
