"""fp32 matmuls of trifold beside `F.linear`: forward, and forward with both gradients, by shape.

    python benchmarks/matmuls.py [--threads 2] [--everywhere] [--rounds 7]

--everywhere: oneDNN at every size, instead of those that trifold.fast.matmul chooses on this
machine. A line per shape: rows, inputs, outputs; GFLOP/s of `F.linear` and of trifold, and the time
of the first divided by that of the second; the last column is whether oneDNN computes the forward
pass. Calls alternate; the figures are medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import product
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


def forward(linear: Linear, x: Tensor, weight: Tensor, g: Tensor) -> None:
    with torch.no_grad():
        linear(x, weight)


def train(linear: Linear, x: Tensor, weight: Tensor, g: Tensor) -> None:
    torch.autograd.grad(linear(x, weight), (x, weight), g)


PASSES = {forward: 1, train: 3}  # matmuls of each


def compare(
    step: Callable[..., None], tensors: Sequence[Tensor], rounds: int
) -> tuple[float, float]:
    """The seconds of `step` with `F.linear` and with trifold."""
    calls = [lambda: step(F.linear, *tensors), lambda: step(matmul.linear, *tensors)]
    for call in calls:
        call()
    start = time.perf_counter()
    calls[0]()
    repeats = max(1, int(BATCH_SECONDS / (time.perf_counter() - start)))
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for index in (number % 2, 1 - number % 2):
            start = time.perf_counter()
            for _ in range(repeats):
                calls[index]()
            seconds[index].append((time.perf_counter() - start) / repeats)
    return median(seconds[0]), median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--everywhere", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    if args.everywhere:
        matmul.rule = lambda: EVERYWHERE  # type: ignore[assignment]
    print(f"{processor_name()}, {args.threads} threads, torch {torch.__version__}: {matmul.rule()}")
    print(f"{'rows':>5} {'in':>5} {'out':>5} | forward, ratio | with gradients, ratio")
    worst: list[list[float]] = [[], []]
    for (inputs, outputs), rows in product(WIDTHS, ROWS):
        x = torch.randn(rows, inputs, requires_grad=True)
        weight = torch.randn(outputs, inputs, requires_grad=True)
        g = torch.randn(rows, outputs)
        line = f"{rows:5} {inputs:5} {outputs:5}"
        for (step, matmuls), ratios in zip(PASSES.items(), worst, strict=True):
            plain, ours = compare(step, (x, weight, g), args.rounds)
            rate = 2e-9 * matmuls * rows * inputs * outputs
            ratios.append(plain / ours)
            line += f" | {rate / plain:4.0f} {rate / ours:4.0f} {plain / ours:5.2f}"
        is_onednn = matmul.supports_onednn_linear(x, weight, None)
        print(f"{line} {'onednn' if is_onednn else ''}", flush=True)
    for name, ratios in zip(("forward", "with gradients"), worst, strict=True):
        print(f"{name}: {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}")


if __name__ == "__main__":
    main()
