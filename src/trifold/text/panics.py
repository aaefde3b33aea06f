"""Panics of the tokenizer library: recognized as exceptions, and their reports kept off stderr.

Rust prints a report of each panic to file descriptor 2, before Python sees the exception.
"""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOCK = threading.RLock()  # file descriptor 2 belongs to the whole process
# An empty line; "thread 'main' (7) panicked at FILE:LINE:COLUMN:"; the message; a backtrace if the
# environment requests one; a note about that, not after every panic.
_REPORT = re.compile(
    rb"\n?^thread '[^'\n]*'(?: \(\d+\))? panicked at .*\n.*\n?"
    rb"(?:stack backtrace:\n(?: +(?:\d+:|at ).*\n)*)?(?:note: .*RUST_BACKTRACE.*\n)?",
    re.MULTILINE,
)


def is_panic(error: BaseException) -> bool:
    """Whether the library's Rust code panicked; the type of such an error is not an Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def hidden_panics() -> Iterator[None]:
    """Keep the reports of panics off stderr. What the process prints otherwise appears at the end.

    One thread at a time; a nested use has no effect of its own.
    """
    with _LOCK, tempfile.TemporaryFile() as captured:
        try:
            stderr = os.dup(2)
        except OSError:  # the process has no stderr
            yield
            return
        _flush()
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            _write(without_reports(captured.read()))


def without_reports(output: bytes) -> bytes:
    """The output without the reports of panics."""
    return _REPORT.sub(b"", output)


def _flush() -> None:
    with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.stderr.flush()


def _write(output: bytes) -> None:
    """Write to stderr; a reader that has gone is no error of the caller."""
    with suppress(OSError):
        while output:
            output = output[os.write(2, output) :]
