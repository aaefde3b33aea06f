"""The sets of instructions for which there are loops on lanes, and what each of them provides.

A new set is an entry of SETS; `lanes` then needs its instructions for its types of products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trifold.fast.processor import features


class LaneInstructions(NamedTuple):
    """What a processor has, and the sizes that fit its registers.

    features: those that LLVM must name. excluded: those with which other code is faster.

    products: the precision of a matmul -> the type of its rows in memory. bf16 is uint16. Int8
    weights are multiplied with uint8 in words of four, or with int16 in words of two. steps: of the
    range of such a row, two less than there are numbers, which rounding may exceed.

    prompts: the precision of keys -> that of the products in the attention of a prompt.

    A sum of `most_inputs` products fits in 32 bits.

    rows, vectors: of a tile of a matmul with weights, whose 16 · vectors columns are sums in
    registers. queries: rows of a tile of scores.
    """

    name: str
    features: tuple[str, ...]
    excluded: tuple[str, ...]
    products: dict[str, type[np.generic]]
    prompts: dict[str, str]
    steps: int
    rows: int
    vectors: int
    queries: int

    @property
    def most_inputs(self) -> int:
        """Of a matmul with int8 weights in ±127."""
        return 2**31 // (127 * (self.steps + 2)) - 1


# 32 registers of 16 numbers, of which 24 hold the sums of a tile.
_AVX512 = LaneInstructions(
    name="AVX-512",
    features=("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512bf16"),
    excluded=("amx-tile",),
    products={"float32": np.float32, "bfloat16": np.uint16, "int8": np.uint8},
    prompts={"float32": "float32", "bfloat16": "bfloat16"},
    steps=2**8 - 3,
    rows=12,
    vectors=2,
    queries=8,
)
SETS = (
    _AVX512,
    # With a unit for matrices, the library of PyTorch is four times as fast in bf16.
    _AVX512._replace(
        features=(*_AVX512.features, "amx-tile"),
        excluded=(),
        products={"float32": np.float32, "int8": np.uint8},
        prompts={"float32": "float32"},
    ),
    # 16 registers of 8 numbers, of which 12 hold the sums. With AVX-512 of any kind, the library
    # of PyTorch is faster.
    LaneInstructions(
        name="AVX2",
        features=("avx2", "fma"),
        excluded=("avx512f",),
        products={"float32": np.float32, "int8": np.int16},
        prompts={"float32": "float32", "bfloat16": "float32"},
        steps=2**12 - 3,
        rows=6,
        vectors=1,
        queries=6,
    ),
)


def instruction_set() -> LaneInstructions | None:
    """The set of this processor; None if there are no loops for it."""
    for each in SETS:
        if features().issuperset(each.features) and features().isdisjoint(each.excluded):
            return each
    return None


def products_of_keys(precision: str) -> str | None:
    """The precision in which a prompt multiplies keys of a precision; None without loops for it."""
    found = instruction_set()
    return None if found is None else found.prompts.get(precision)


def has_panels() -> bool:
    """Whether matmuls of many rows are instructions: where a library has none for integers or bf16,
    and sums fill the registers of AVX2.
    """
    found = instruction_set()
    return found is not None and found.name == "AVX2" and "f16c" in features()
