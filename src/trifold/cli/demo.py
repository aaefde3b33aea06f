"""`trifold demo`: train a small model, score it and use it, in one command; one demo per shape of
model.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from trifold.cli.options import Json, argument, value
from trifold.cli.terminal import print_note
from trifold.errors import check_utf8

EXAMPLES = (
    "trifold demo",
    "trifold demo translate --minutes 1 --out runs/quick-demo",
    "trifold demo write",
    "trifold demo read --json",
)
Name = Literal["translate", "write", "read"]
DEFAULT: Name = "translate"

# Descriptions for the choice on a terminal.
DEMOS: dict[Name, str] = {
    "translate": "English to French, from a phrasebook: an encoder-decoder",
    "write": "complete Python functions of the standard library: a decoder",
    "read": "tell whether a French sentence translates an English one: an encoder",
}


def run(
    name: Annotated[
        Name | None,
        argument(
            "[translate|write|read]", "Which demo; default: ask on a terminal, else translate."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        value(
            "FOLDER",
            "The run folder; an earlier demo there is replaced.",
            show_default="runs/demo, runs/demo-write or runs/demo-read",
        ),
    ] = None,
    minutes: Annotated[float | None, value("N", "Maximum training time.")] = None,
    json: Json = False,
) -> None:
    """Train a small model on text that comes with trifold or Python, score it and use it.

    \b
    translate  English to French, an encoder-decoder trained on a phrasebook
    write      Python functions, a GPT trained on the standard library
    read       translations and other pairs, a BERT pretrained on the phrasebook
    """  # noqa: D301 (\b keeps the lines apart in the help)
    chosen = name or (DEFAULT if json or not _is_terminal() else ask())
    check_utf8(str(out), "--out")
    demo = import_module(f"trifold.cli.demos.{chosen}")
    demo.run(out or demo.FOLDER, minutes, json)


def ask() -> Name:
    """Ask which demo to run."""
    names = list(DEMOS)
    for number, name in enumerate(names, start=1):
        print_note(f"  {number}  {name:<10} {DEMOS[name]}")
    print_note(f"\nEach takes up to four minutes on two cores. Which one? [{DEFAULT}]")
    while True:
        try:
            answer = input().strip().lower() or DEFAULT
        except EOFError:
            return DEFAULT
        for number, name in enumerate(names, start=1):
            if answer == str(number) or name.startswith(answer):
                return name
        print_note(
            f"{answer!r} is not a demo; type {', '.join(names)}, a number, or Enter for {DEFAULT}"
        )


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
