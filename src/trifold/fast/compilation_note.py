"""A line on the terminal when Numba compiles.

It takes up to a minute, once for each installation and processor. Without the line, a command seems
to hang.
"""

import sys
from typing import Any

from numba.core import event

NOTE = "compiling loops for this processor; later processes load them from disk"


class CompilationNote(event.Listener):  # type: ignore[misc]
    """Prints the line once in a process, if standard error is a terminal."""

    def __init__(self) -> None:
        self.is_due = True

    def on_start(self, started: Any) -> None:
        if self.is_due and sys.stderr.isatty():
            self.is_due = False
            print(NOTE, file=sys.stderr, flush=True)

    def on_end(self, ended: Any) -> None:
        """Nothing is printed at the end."""


event.register("numba:compile", CompilationNote())
