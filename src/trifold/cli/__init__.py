"""The command line: arguments in, a call, results out. One file a verb.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C), 143 terminated. Results go to standard output,
everything else to standard error. Verbs import what they need when they run, so that `--help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Annotated

import typer

import trifold
from trifold.cli import convert, demo, doctor, eval, generate, look, predict, recipes, show, train
from trifold.cli.streams import complain, note, speak_utf8, speaks
from trifold.errors import OtherRankError, TrifoldError

# What a newcomer types first comes first.
VERBS: dict[str, tuple[ModuleType, str]] = {
    "demo": (demo, "learn to translate, write or read, in a few minutes"),
    "recipes": (recipes, "what can be trained out of the box"),
    "train": (train, "learn what a recipe says"),
    "eval": (eval, "score a model: translations, or text that it has not seen"),
    "generate": (generate, "translate a text, or every line of a file"),
    "predict": (predict, "classify, tag, answer, fill in masks, embed"),
    "show": (show, "drawing, parameters, arithmetic and memory of a model"),
    "look": (look, "see what a model attends to"),
    "convert": (convert, "write a model in another form, precision or size of file"),
    "doctor": (doctor, "what this machine has, and whether training survives on it"),
}

_ABOUT = """One Transformer, three shapes: train, run, score and look inside.

\b
First steps:
  trifold demo                                    learn English to French in three minutes
  trifold generate runs/demo "I love dogs."       and use it
  trifold train multi30k-en-de                    a real translator
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, that of the process unless given; returns the exit code."""
    speak_utf8()
    try:
        with _heeding_sigterm():
            code = _app()(args=arguments, prog_name="trifold", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except OtherRankError as error:
        if speaks() and not error.reported:
            complain(str(error))
        return error.exit_code
    except TrifoldError as error:
        complain(str(error))
        return error.exit_code
    except typer.TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".?")
        complain(f"{said}; see `{_command_of(error)} --help`")
        return error.exit_code
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1


class Terminated(SystemExit):
    """SIGTERM, where nobody does anything more orderly about it: what is open is closed on the way out."""


@contextmanager
def _heeding_sigterm() -> Iterator[None]:
    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(143)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _app() -> typer.Typer:
    # Plain help: rich would double the time that `--help` takes.
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=_ABOUT
    )
    app.callback(invoke_without_command=True)(_without_verb)
    for name, (verb, about) in VERBS.items():
        app.command(name, short_help=about, epilog=_examples(verb.EXAMPLES))(verb.run)
    return app


def _without_verb(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"trifold {trifold.__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        note(context.get_help())
        raise typer.Exit(2)


def _examples(commands: Sequence[str]) -> str:
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def _command_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "trifold"


def _forget_stdout() -> None:
    """Whoever read our output has gone: let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
