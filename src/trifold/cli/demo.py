"""`trifold demo`: from nothing to a model that works, in one command; three of them, one a shape."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from trifold.cli.options import Json
from trifold.cli.streams import note

EXAMPLES = (
    "trifold demo",
    "trifold demo translate --minutes 1 --out runs/quick-demo",
    "trifold demo write",
    "trifold demo read --json",
)
Name = Literal["translate", "write", "read"]
USUAL: Name = "translate"

# What each is, for who is asked.
DEMOS: dict[Name, str] = {
    "translate": "English to French, from a phrasebook: an encoder-decoder",
    "write": "complete Python functions, from the standard library's sources: a decoder",
    "read": "tell which package a docstring comes from, after masked words: an encoder",
}


def run(
    name: Annotated[
        Name | None,
        typer.Argument(
            metavar="[translate|write|read]",
            help="Which one; a terminal is asked unless given, and what is none gets translate.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where to; an earlier demo there is replaced.",
            show_default="runs/demo, runs/demo-write or runs/demo-read",
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Train no longer than this.")] = None,
    json: Json = False,
) -> None:
    """Train a small model from text that is here already, use it, and score it.

    \b
    translate  English to French on the embedded phrasebook; sentences it has never seen
    write      a GPT on the standard library's sources; functions it completes
    read       a masked language model of its docstrings; which package one comes from
    """  # noqa: D301 (the sign keeps its lines apart in the help)
    chosen = name or (USUAL if json or not _at_a_terminal() else ask())
    demo = import_module(f"trifold.cli.demos.{chosen}")
    demo.run(out or demo.FOLDER, minutes, json)


def ask() -> Name:
    """The demo that a person at the terminal wants."""
    names = list(DEMOS)
    for number, name in enumerate(names, start=1):
        note(f"  {number}  {name:<10} {DEMOS[name]}")
    note(f"\nEach takes up to four minutes on two cores. Which one? [{USUAL}]")
    while True:
        try:
            answer = input().strip().lower()
        except EOFError:
            return USUAL
        for number, name in enumerate(names, start=1):
            if answer == str(number) or (answer and name.startswith(answer)):
                return name
        if not answer:
            return USUAL
        note(f"{answer!r} is none of {', '.join(names)}; a name, its number, or nothing for {USUAL}")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
