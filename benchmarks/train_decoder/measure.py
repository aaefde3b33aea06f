"""Shared by all runners: arguments, data, timing, and the line of JSON that they print."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from setting import Setting
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from peak_memory import peak_mb
from progress import note


def arguments(
    description: str | None,
    precisions: Sequence[str] = ("fp32", "bf16"),
    optimizers: Sequence[str] = ("adamw",),
) -> argparse.Namespace:
    """Parse the arguments of a runner, set the number of threads, and fix the seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--precision", choices=precisions, required=True)
    parser.add_argument("--optimizer", choices=optimizers)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the timed window")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--wide", action="store_true", help="a step of 16,384 tokens and 50,257 words"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    args.imported_mb = peak_mb()  # what is imported at the top of a runner is; no model is made yet
    return args


def text() -> str:
    """tinyshakespeare, or random text of the same size and alphabet if it is missing."""
    path = Path(os.environ.get("TRIFOLD_DATA", "")) / "tinyshakespeare" / "input.txt.gz"
    if path.is_file():
        return gzip.decompress(path.read_bytes()).decode("utf-8")
    print("tinyshakespeare is not under $TRIFOLD_DATA: measuring on random text", file=sys.stderr)
    return "".join(random.Random(1).choices(string.ascii_letters + " \n.,", k=1_115_394))


def windows(setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of the training text for the peers: tokens and the next token of each, (rows,
    context).
    """
    letters = text()
    number = {letter: n for n, letter in enumerate(sorted(set(letters)))}
    ids = np.array([number[letter] for letter in letters[: len(letters) * 9 // 10]], dtype=np.int64)
    drawn = np.random.default_rng(1)
    while True:
        places = drawn.integers(0, len(ids) - setting.context - 1, setting.rows)[
            :, None
        ] + np.arange(setting.context + 1)
        stretch = torch.from_numpy(ids[places])
        yield stretch[:, :-1], stretch[:, 1:]


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def run_timed(name: str, args: argparse.Namespace, step: Callable[[], tuple[float, int]]) -> None:
    """Call `step`, which returns the loss in nats and its tokens, until the timed window ends;
    print the result.
    """
    losses, tokens = [], 0
    start = end = time.perf_counter()
    while end - start < args.seconds or len(losses) <= args.warmup:
        loss, count = step()
        losses.append(loss)
        end = time.perf_counter()
        note(count)
        if len(losses) <= args.warmup:
            start = end
        else:
            tokens += count
    say(
        name=name,
        precision=args.precision,
        tokens_per_s=round(tokens / (end - start), 1),
        steps=len(losses) - args.warmup,
        seconds=round(end - start, 2),
        above_import_mb=round(peak_mb() - args.imported_mb, 1),
        loss_first=round(losses[0], 4),
        loss_last=round(sum(losses[-5:]) / len(losses[-5:]), 4),
    )
