"""The last line of a command that Ctrl-C has ended: which command continues, or begins again."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from trifold.cli.terminal import is_main_process, print_note

Function = TypeVar("Function", bound=Callable[..., Any])

INTERRUPTED = 130  # exit code
CONTINUES = "the same command continues"  # argument of a KeyboardInterrupt
MAX_COMMAND = 500  # characters; a longer command holds whole texts


@contextmanager
def continued_by_the_same_command() -> Iterator[None]:
    """State of an interruption in this block that the same command continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(CONTINUES) from None


def with_last_line(command: Function, arguments: Sequence[str]) -> Function:
    """The command, which prints its last line when it is interrupted."""

    @wraps(command)
    def run(*given: Any, **options: Any) -> Any:
        try:
            return command(*given, **options)
        except KeyboardInterrupt as stop:
            print_last_line(stop, arguments)
            raise

    return run  # type: ignore[return-value]


def print_last_line(stop: KeyboardInterrupt, arguments: Sequence[str]) -> None:
    """Print the line of the interruption, or how the command with these arguments goes on."""
    if not is_main_process():
        return
    line = str(stop)
    if line in ("", CONTINUES):
        verb = "continue" if line else "begin again"
        line = f"stopped; {verb} with {_command(arguments)}"
    if sys.stderr.isatty():
        print(end="\r", file=sys.stderr)  # over the ^C
    print_note(line)


def _command(arguments: Sequence[str]) -> str:
    command = shlex.join(["trifold", *arguments])
    if len(command) > MAX_COMMAND or "\n" in command:
        return "the same command"
    input = " and the same input" * ("-" in arguments)
    return f"`{command}`{input}"
