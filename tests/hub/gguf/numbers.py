"""Numbers to quantize, the same on every machine."""

from collections.abc import Callable
from random import Random

import numpy as np

COUNT = 64 * 256
SCALES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0)

INPUTS: dict[str, Callable[[Random, int], float]] = {
    "normal": lambda random, number: sum(random.random() for _ in range(4)) - 2,
    "heavy": lambda random, number: 1 / (random.random() - 0.5),
    "positive": lambda random, number: random.random() + 0.1,
    "grid": lambda random, number: random.randint(-8, 7) / 8,
    "sparse": lambda random, number: random.random() if random.random() < 0.1 else 0.0,
    "constant": lambda random, number: (number // 16 % 7 - 3) / 4,
    "tiny": lambda random, number: (random.random() - 0.5) * 1e-20,
    "groups": lambda random, number: (random.random() - 0.5) * SCALES[number // 16 % len(SCALES)],
}


def numbers(kind: str) -> np.ndarray:
    """64 blocks of 256 values in float32."""
    random = Random(kind)
    make = INPUTS[kind]
    return np.array([make(random, number) for number in range(COUNT)], np.float32)
