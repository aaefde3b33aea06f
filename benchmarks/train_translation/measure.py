"""Shared by all runners: arguments, timing, and the line of JSON that they print."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from batches import Batch
from setting import Setting

sys.path.append(str(Path(__file__).parents[1]))
from peak_memory import peak_mb
from progress import note


@dataclass(frozen=True)
class Line:
    """The last line of a runner's output; tokens are real, including the end token of the
    target.
    """

    name: str
    precision: str
    target_tokens: int
    seconds: float
    target_tokens_per_s: float
    source_tokens: int
    padding_share: float
    peak_rss_mb: float
    loss_first: float
    loss_last: float
    steps: int


def arguments(description: str | None = None) -> argparse.Namespace:
    """Parse the arguments of a runner, set the number of threads, and fix the seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the timed window")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    return args


def setting_of(folder: Path) -> Setting:
    """The benchmark setting with the vocabulary size of the prepared data."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return Setting(vocab_size=meta["vocab_size"])


class Clock:
    """Starts after the warm-up, counts steps, and ends after the timed window."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.args = name, args
        self.losses: list[float] = []
        self.source_tokens = self.target_tokens = self.positions = 0
        self.start = self.end = time.perf_counter()

    def step(self, *, loss: float, source_tokens: int, target_tokens: int, positions: int) -> bool:
        """Record a finished step (loss in nats per target token); False at the end of the timed
        window.
        """
        self.losses.append(loss)
        self.end = time.perf_counter()
        note(target_tokens)
        if len(self.losses) <= self.args.warmup:
            self.start = self.end
            return True
        self.source_tokens += source_tokens
        self.target_tokens += target_tokens
        self.positions += positions
        return self.end - self.start < self.args.seconds

    def line(self) -> Line:
        seconds = self.end - self.start
        tail = self.losses[-5:]
        return Line(
            name=self.name,
            precision=self.args.precision,
            target_tokens=self.target_tokens,
            seconds=round(seconds, 3),
            target_tokens_per_s=round(self.target_tokens / seconds, 1),
            source_tokens=self.source_tokens,
            padding_share=round(1 - (self.source_tokens + self.target_tokens) / self.positions, 4),
            peak_rss_mb=round(peak_mb(), 1),
            loss_first=round(self.losses[0], 4),
            loss_last=round(sum(tail) / len(tail), 4),
            steps=len(self.losses) - self.args.warmup,
        )


def run_timed(clock: Clock, batches: Iterator[Batch], train_step: Callable[[Batch], float]) -> None:
    """Train until the end of the timed window, then print the result."""
    for batch in batches:
        loss = train_step(batch)
        if not clock.step(
            loss=loss,
            source_tokens=batch.source_tokens,
            target_tokens=batch.target_tokens,
            positions=batch.positions,
        ):
            break
    print_line(clock.line())


def print_line(line: Line) -> None:
    print(json.dumps(asdict(line)), flush=True)
