"""Peak speed of this machine, measured in the same run as the toolkits; it needs trifold."""

from __future__ import annotations

import argparse
import json

import torch

from trifold.cli.checks import processor_name
from trifold.cli.speed import best_seconds, matmul_rate, read_rate
from trifold.fast.matmul import onednn_linear

SHAPES = ((2048, 512, 2048), (2048, 128, 512))  # (rows, inner, columns) of the products
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
READERS = 2  # threads that read memory
SECONDS = 0.5  # of each product, and half of those of reading


def onednn_rate(shape: tuple[int, int, int], dtype: torch.dtype, budget: float) -> float:
    """GFLOP/s of the product by oneDNN with all threads; 0 without it."""
    rows, inner, columns = shape
    x = torch.randn(rows, inner, dtype=dtype)
    weight = torch.randn(columns, inner, dtype=dtype)
    try:
        seconds = best_seconds(lambda: onednn_linear(x, weight, None), budget)
    except (AttributeError, RuntimeError):
        return 0.0
    return 2e-9 * rows * inner * columns / seconds


def fastest_rate(shape: tuple[int, int, int], dtype: torch.dtype, budget: float) -> float:
    """GFLOP/s of the product by the faster of the library that trifold chooses, and oneDNN."""
    chosen = matmul_rate(shape, dtype, torch.device("cpu"), budget / 2)
    return max(chosen, onednn_rate(shape, dtype, budget / 2))


def peak_rate(dtype: torch.dtype) -> float:
    """GFLOP/s of the fastest product of all shapes."""
    return max(fastest_rate(shape, dtype, SECONDS) for shape in SHAPES)


def measure() -> dict[str, float]:
    """All measurements by name: `fp32 2048x512x2048` and so on in GFLOP/s, `read` in GB/s."""
    figures = {
        f"{precision} {'x'.join(map(str, shape))}": fastest_rate(shape, dtype, SECONDS)
        for precision, dtype in PRECISIONS.items()
        for shape in SHAPES
    }
    figures["read"] = read_rate(READERS, 2 * SECONDS)
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print(json.dumps({"processor": processor_name(), "torch": torch.__version__, **measure()}))


if __name__ == "__main__":
    main()
