"""Shared by all runners: arguments, timing, memory, and one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import setting

sys.path.append(str(Path(__file__).parents[1]))
from peak_memory import peak_mb

Encode = Callable[[list[Any]], np.ndarray]  # texts or images -> vectors (N, E) of length 1


@dataclass(frozen=True)
class Line:
    """Inputs per second of the fastest, the median and the first call; cosines to float64."""

    name: str
    precision: str
    best: float
    middle: float
    first: float
    calls: int
    load_s: float
    peak_rss_mb: float
    cosine: float
    least_cosine: float


def arguments(description: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--model", choices=list(setting.SHAPES), default="minilm")
    parser.add_argument("--count", type=int, required=True, help="inputs of a call")
    parser.add_argument("--precision", required=True)
    parser.add_argument("--seconds", type=float, default=6.0, help="of warm calls")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def measure(name: str, args: argparse.Namespace, load: Callable[[], Encode]) -> None:
    """Load the model, encode all inputs again and again, and print the line."""
    inputs = setting.inputs(args.model, args.count)
    reference = np.load(args.folder / f"reference-{args.count}.npy")
    start = time.perf_counter()
    encode = load()
    loading = time.perf_counter() - start
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds[1:]) < args.seconds:
        start = time.perf_counter()
        vectors = encode(inputs)
        seconds.append(time.perf_counter() - start)
    vectors = vectors.astype(np.float64)
    cosines = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1)
    line = Line(
        name,
        args.precision,
        best=round(len(inputs) / min(seconds[1:]), 1),
        middle=round(len(inputs) / median(seconds[1:]), 1),
        first=round(len(inputs) / seconds[0], 1),
        calls=len(seconds) - 1,
        load_s=round(loading, 2),
        peak_rss_mb=round(peak_mb(), 1),
        cosine=round(float(cosines.mean()), 5),
        least_cosine=round(float(cosines.min()), 5),
    )
    print(json.dumps(asdict(line)), flush=True)
