"""Shared by all runners: arguments, timing, and one line of JSON for each workload."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from setting import WORKS, Work, prompts

sys.path.append(str(Path(__file__).parents[1]))
from peak_memory import peak_mb
from progress import note

Write = Callable[[list[list[int]]], list[list[int]]]


@dataclass(frozen=True)
class Line:
    """One toolkit and workload: tokens per second of the fastest, the median and the first call."""

    name: str
    precision: str
    work: str
    tokens: int
    best: float
    middle: float
    first: float
    calls: int
    peak_rss_mb: float
    output: list[int]  # the first row's first tokens, to see who agrees with whom


def arguments(description: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--precision", required=True)
    parser.add_argument("--works", required=True, help="comma-separated: " + ",".join(WORKS))
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of warm calls, for each workload"
    )
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def measure(name: str, args: argparse.Namespace, writer: Callable[[Work], Write]) -> None:
    """Print one line for each workload; `writer` returns the function that continues prompts."""
    for work_name in args.works.split(","):
        work = WORKS[work_name]
        rows, write = prompts(work), writer(work)
        tokens = work.rows * work.new
        seconds: list[float] = []
        while len(seconds) < 4 or sum(seconds[1:]) < args.seconds:
            start = time.perf_counter()
            written = write(rows)
            seconds.append(time.perf_counter() - start)
            note(tokens)
        wrong = [len(row) for row in written if len(row) != work.new]
        assert not wrong, f"{name}: {wrong} tokens instead of {work.new}"
        line = Line(
            **{"name": name, "precision": args.precision, "work": work_name, "tokens": tokens},
            best=round(tokens / min(seconds[1:]), 1),
            middle=round(tokens / median(seconds[1:]), 1),
            first=round(tokens / seconds[0], 1),
            calls=len(seconds) - 1,
            peak_rss_mb=round(peak_mb(), 1),
            output=written[0][:16],
        )
        print(json.dumps(asdict(line)), flush=True)
