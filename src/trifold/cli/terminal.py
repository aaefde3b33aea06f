"""Terminal output: results on standard output, everything else on standard error, both in UTF-8.

Colors and progress bars appear on terminals only; rich respects NO_COLOR and TERM=dumb. Tables fit
the width of the terminal, or 80 columns.
"""

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Literal, TextIO

from trifold import disk
from trifold.errors import UsageError, check_utf8, escape, printable, wrapped
from trifold.jsonfiles import json_line

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a write, whose OSError has no file name
GAP = 3  # columns between those of a table
STYLES = {"error: ": "bold red", "warning: ": "bold yellow"}


def use_utf8() -> None:
    """Write UTF-8 in any locale, and line feeds on any system."""
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


def is_main_process() -> bool:
    """Whether this process prints what all processes of a run would print: the only one, or rank
    0.
    """
    return os.environ.get("RANK", "0") == "0"


def print_note(line: str) -> None:
    """Print a line on standard error, wrapped; a leading `error:` or `warning:` is colored on a
    terminal.
    """
    if not sys.stderr.isatty():
        print(wrapped(line), file=sys.stderr, flush=True)
        return
    line = wrapped(line, get_terminal_size().columns)
    label = next((label for label in STYLES if line.startswith(label)), None)
    if label is None:
        print(line, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble((label, STYLES[label]), line.removeprefix(label))
    Console(stderr=True).print(text, soft_wrap=True)


def print_error(message: str) -> None:
    """Print `error: …` for each line of the message."""
    for line in printable(message or "unknown").split("\n"):
        print_note(f"error: {line}")


def print_json(value: Any = None, **values: Any) -> None:
    """Print one line of JSON on standard output: a value, or an object with named values."""
    print(json_line(values if value is None else value), flush=True)


def print_table(
    rows: Sequence[Sequence[str]],
    right: str = "",
    cut: int = 0,
    whole_from: int = 0,
    *,
    breaks_words: bool = True,
) -> None:
    """Print rows, of which the first is the heading; columns marked `r` in `right` are
    right-aligned.

    Cells that are too wide are wrapped, with `whole_from` only those before that column; or, with
    `cut`, every row is one line, and the first `cut` columns lose their ends. Without
    `breaks_words`, a word of the last column that is too long, such as a path, is a line that is
    wider than the terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for index, title in enumerate(rows[0]):
        justify: Literal["left", "right"] = "left"
        if right[index : index + 1] == "r":
            justify = "right"
        is_whole = 0 < (cut or whole_from) <= index
        table.add_column(Text(title), justify=justify, overflow="fold", no_wrap=is_whole)
    overflow: Literal["ellipsis"] | None = "ellipsis" if cut else None
    for row in rows[1:]:
        table.add_row(*(Text(cell, no_wrap=bool(cut), overflow=overflow) for cell in row))
    console = Console()
    columns = console.width
    if not breaks_words:
        console.width = max(console.width, _widest_words(rows))
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    lines[1] = lines[1][:columns]  # the rule
    print("\n".join(lines))


def _widest_words(rows: Sequence[Sequence[str]]) -> int:
    """The columns that a table needs if only its last cells are wrapped, between words."""
    *before, last = zip(*rows, strict=True)
    words = (word for cell in last for word in cell.split(" "))
    return sum(max(map(len, cells)) + GAP for cells in before) + max(map(len, words))


def short_number(
    number: float, base: int = 1000, units: Sequence[str] = ("", "k", "M", "G", "T")
) -> str:
    """The number with the largest unit that keeps it at least 1."""
    power = next((n for n in range(len(units) - 1) if number < base ** (n + 1)), len(units) - 1)
    return f"{number / base**power:,.4g} {units[power]}".rstrip()


def print_result(text: str, results: TextIO, end: str = "\n") -> None:
    """Print generated text at once: escaped on a terminal, and unchanged to a file or a pipe."""
    if results.isatty():
        text = escape(text)
    print(text, end=end, file=results, flush=True)


STDOUT = "-"  # as the name of a file
COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".zip")  # suffixes


def check_not_read(out: Path, *sources: str) -> None:
    """Raises UsageError for an output that would replace a file that is read, also by a pattern, or
    that stands in a folder that is read.
    """
    from trifold.data import expand_path
    from trifold.data.files import TABLE_FORMATS, list_files

    whole = out.resolve()
    for source in sources:
        place = "in the folder" if expand_path(source).is_dir() else "the file"
        files = (source, *list_files(source, TABLE_FORMATS))
        if {expand_path(file).resolve() for file in files} & {whole, *whole.parents}:
            raise UsageError(f"--out {out}: is {place} that is read, {source}; name another file")


def check_output(out: Path | None, *sources: str, overwrite: bool) -> None:
    """Raises UsageError for an output that exists, unless it may be overwritten, for a compressed
    one, and for a source, which is read. Call it before a model is loaded.
    """
    if out is None or str(out) == STDOUT:
        return
    check_utf8(str(out), "--out")
    if out.suffix.lower() in COMPRESSED:
        raise UsageError(
            f"--out {out}: outputs are not compressed; name {out.with_suffix('')}, and compress "
            "it afterwards"
        )
    check_not_read(out, *sources)
    disk.check_free(out, overwrite=overwrite)


def is_regular_file(stream: TextIO) -> bool:
    """Whether a stream reads a file on a disk, which has all of its lines."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # no file of the system
        return False


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """The file for the results, or standard output, also for `-`.

    The results are written to FILE.part, which replaces the file when all are there: a command that
    is interrupted keeps the old file and the results so far. A pipe or a device is written as it
    is. Raises UsageError if the file cannot be written, or another process writes it.
    """
    if path is None or str(path) == STDOUT:
        yield sys.stdout
        return
    if path.exists() and not path.is_file():  # a pipe or a device
        with _naming_full_disk(path), _open_to_write(path, path) as file:
            yield file
        return
    if path.is_symlink():  # which stays
        path = path.resolve()
    part = path.with_name(f"{path.name}.part")
    with disk.exclusive(path):
        file = _open_to_write(part, path)
        try:
            with _naming_full_disk(path), file:
                yield file
        except BaseException:
            _keep_part(part)
            raise
        disk.rename(part, path)


def _open_to_write(file: Path, out: Path) -> TextIO:
    """Open a file for the results of --out. Raises UsageError if it cannot be written."""
    try:
        return file.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror})") from None


@contextmanager
def _naming_full_disk(out: Path) -> Iterator[None]:
    """Add the name of the file to the error of a full disk, which does not have it."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and not error.filename:
            raise OSError(error.errno, error.strerror, str(out)) from None
        raise


def _keep_part(part: Path) -> None:
    """Print where the results of a command that failed are, or remove an empty file."""
    if part.stat().st_size:
        print_note(f"{part}: has the results so far")
    else:
        disk.remove(part)
