"""Peak speed of this machine, measured in the same run as the toolkits."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SHAPES = ((2048, 512, 2048), (2048, 128, 512))  # (rows, inner, columns) of the products
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
READ_BYTES = 2**28  # a thread: far beyond any cache


def best_seconds(call: Callable[[], object], budget: float) -> float:
    """Shortest time of a call within `budget` seconds, after one call that is not counted."""
    call()
    best, end = float("inf"), time.perf_counter() + budget
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best


def matrix_gflops(shape: tuple[int, int, int], dtype: torch.dtype, budget: float = 0.5) -> float:
    """Peak GFLOP/s of a matrix product of `shape`."""
    rows, inner, columns = shape
    x, weight = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype)
    seconds = best_seconds(lambda: torch.nn.functional.linear(x, weight), budget)
    return 2 * rows * inner * columns / seconds / 1e9


def read_gigabytes_per_second(threads: int = 2, budget: float = 1.0) -> float:
    """Memory bandwidth in GB/s of threads that each read their own array."""
    arrays = [torch.ones(READ_BYTES // 8, dtype=torch.int64) for _ in range(threads)]
    outer = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            seconds = best_seconds(lambda: list(pool.map(torch.sum, arrays)), budget)
    finally:
        torch.set_num_threads(outer)
    return threads * READ_BYTES / seconds / 1e9


def measure() -> dict[str, float]:
    """All measurements by name: `fp32 2048x512x2048` and so on in GFLOP/s, `read` in GB/s."""
    figures = {
        f"{precision} {'x'.join(map(str, shape))}": round(matrix_gflops(shape, dtype), 1)
        for precision, dtype in PRECISIONS.items()
        for shape in SHAPES
    }
    return figures | {"read": round(read_gigabytes_per_second(), 1)}


def processor() -> str:
    """The name of the processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print(json.dumps({"processor": processor(), "torch": torch.__version__, **measure()}))


if __name__ == "__main__":
    main()
