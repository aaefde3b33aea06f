"""Reports each step of a runner, so that another program can tell its speed at any time."""

from __future__ import annotations

import os
import time
from pathlib import Path

FILE = (
    "TRIFOLD_BENCHMARK_PROGRESS"  # names a file in the environment; without it nothing is written
)


def note(tokens: int) -> None:
    """Append the time, which all processes share, and the tokens of a step that has just ended."""
    if path := os.environ.get(FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()} {tokens}\n")


def steps(path: Path) -> list[tuple[float, int]]:
    """The time and the tokens of the steps so far."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [(float(end), int(tokens)) for end, tokens in fields]
