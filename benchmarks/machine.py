"""Peak speed of this machine, measured in the same run as the toolkits; it needs trifold."""

from __future__ import annotations

import argparse
import json

import torch

from trifold.cli.checks import processor_name
from trifold.cli.speed import matmul_rate, read_rate

SHAPES = ((2048, 512, 2048), (2048, 128, 512))  # (rows, inner, columns) of the products
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
READERS = 2  # threads that read memory
SECONDS = 0.5  # of each product, and half of those of reading


def measure() -> dict[str, float]:
    """All measurements by name: `fp32 2048x512x2048` and so on in GFLOP/s, `read` in GB/s."""
    cpu = torch.device("cpu")
    figures = {
        f"{precision} {'x'.join(map(str, shape))}": matmul_rate(shape, dtype, cpu, SECONDS)
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
