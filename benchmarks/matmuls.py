"""fp32 matmuls of trifold beside `F.linear`: forward, and forward with both gradients, by shape.

    python benchmarks/matmuls.py [--threads 2] [--everywhere] [--rounds 7]
    GOMP_SPINCOUNT=0 python benchmarks/matmuls.py --busiest --shape 1037x384x384 --rounds 60

--busiest: the CPU time of the thread that works most, which other processes change less than the
duration of a call (Linux). --shape: this one (rows, inputs, outputs). --everywhere: oneDNN at every
size, instead of those that trifold.fast.matmul chooses on this machine. A line per shape: rows,
inputs, outputs; GFLOP/s of `F.linear` and of trifold, and the time of the first divided by that of
the second; the last column is whether oneDNN computes the forward pass. Calls alternate; the
figures are medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.cli.checks import processor_name
from trifold.fast import matmul
from trifold.train.device import keep_freed_memory

ROWS = (1, 33, 250, 1037, 2048, 8192)
WIDTHS = (
    *((64, 64), (128, 128), (128, 384), (384, 384), (384, 1536), (1536, 384)),
    *((768, 3072), (1024, 1024), (4096, 1024), (333, 777)),
)
BATCH_SECONDS = 1e-3  # shorter calls are repeated, and timed together
EVERYWHERE = matmul.MatmulRule(rows=0, width=0, size=0, reuse=0)

Linear = Callable[[Tensor, Tensor], Tensor]
Measure = Callable[[Callable[[], None]], float]


def forward(linear: Linear, x: Tensor, weight: Tensor, g: Tensor) -> None:
    with torch.no_grad():
        linear(x, weight)


def train(linear: Linear, x: Tensor, weight: Tensor, g: Tensor) -> None:
    torch.autograd.grad(linear(x, weight), (x, weight), g)


PASSES = {forward: 1, train: 3}  # matmuls of each


def repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def duration(work: Callable[[], None]) -> float:
    """Its seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def busiest(work: Callable[[], None]) -> float:
    """The CPU seconds of the thread that works most."""
    before = cpu_times()
    work()
    return max(value - before.get(thread, 0) for thread, value in cpu_times().items()) / 1e9


def cpu_times() -> dict[str, int]:
    """Nanoseconds of each thread of this process."""
    threads = Path("/proc/self/task").iterdir()
    return {each.name: int((each / "schedstat").read_text().split()[0]) for each in threads}


def compare(
    step: Callable[..., None], tensors: Sequence[Tensor], rounds: int, measure: Measure
) -> tuple[float, float]:
    """The seconds of `step` with `F.linear` and with trifold."""
    calls = [lambda: step(F.linear, *tensors), lambda: step(matmul.linear, *tensors)]
    for call in calls:
        call()
    repeats = max(1, int(BATCH_SECONDS / duration(calls[0])))
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for index in (number % 2, 1 - number % 2):
            work = partial(repeat, calls[index], repeats)
            seconds[index].append(measure(work) / repeats)
    return median(seconds[0]), median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--everywhere", action="store_true")
    parser.add_argument("--busiest", action="store_true")
    parser.add_argument("--shape", action="append", help="ROWSxINPUTSxOUTPUTS; repeatable")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    if args.everywhere:
        matmul.rule = lambda: EVERYWHERE  # type: ignore[assignment]
    print(f"{processor_name()}, {args.threads} threads, torch {torch.__version__}: {matmul.rule()}")
    print(f"{'rows':>5} {'in':>5} {'out':>5} | forward, ratio | with gradients, ratio")
    worst: list[list[float]] = [[], []]
    measure = busiest if args.busiest else duration
    shapes = [(rows, *widths) for widths, rows in product(WIDTHS, ROWS)]
    if args.shape:
        shapes = [tuple(map(int, each.split("x"))) for each in args.shape]
    for rows, inputs, outputs in shapes:
        x = torch.randn(rows, inputs, requires_grad=True)
        weight = torch.randn(outputs, inputs, requires_grad=True)
        g = torch.randn(rows, outputs)
        line = f"{rows:5} {inputs:5} {outputs:5}"
        for (step, matmuls), ratios in zip(PASSES.items(), worst, strict=True):
            plain, ours = compare(step, (x, weight, g), args.rounds, measure)
            rate = 2e-9 * matmuls * rows * inputs * outputs
            ratios.append(plain / ours)
            line += f" | {rate / plain:4.0f} {rate / ours:4.0f} {plain / ours:5.2f}"
        is_onednn = matmul.supports_onednn_linear(x, weight, None)
        print(f"{line} {'onednn' if is_onednn else ''}", flush=True)
    for name, ratios in zip(("forward", "with gradients"), worst, strict=True):
        print(f"{name}: {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}")


if __name__ == "__main__":
    main()
