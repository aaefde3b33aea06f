"""The format of the instructions that interpreter.py executes.

An instruction is one operation of a decoding step: a norm, a matmul, attention, or what is done
before and after a matmul of a library. It consists of tasks, which the threads share. Arrays are
given by address, 0 for an absent one; the caller keeps them alive. Strides count elements, not
bytes.
"""

from typing import NamedTuple

import numpy as np

NORM, MATMUL, ATTENTION, QUANTIZE, DEQUANTIZE, CONVERT, FINISH = range(7)
BLOCK_MATMUL, BLOCK_QUANTIZE, BLOCK_DEQUANTIZE, BLOCK_LAYOUT = 7, 8, 9, 10
EMBED, BLOCK_EMBED, SCALE, PROMPT_ATTENTION = 11, 12, 13, 14
DENSE_PANELS, BLOCK_PANELS = 15, 16  # matmuls of many rows
ROTATE = 17  # queries and keys of a prompt
# Of weights, and of cached keys. WIDENED: weights in bf16 of a model in another type, for which
# activations are not rounded. FLOAT16: the same for weights in fp16.
FLOAT32, BFLOAT16, WIDENED, FLOAT16 = 0, 1, 2, 3
ITEM_BYTES = (4, 2, 2, 2)
SET, ADD, MULTIPLY = 0, 1, 2  # how the result is combined with the current value of `out`
LAYER_NORM, RMS_NORM = 0, 1
NONE, RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH, RELU2 = range(8)
ACTIVATIONS = {
    "none": NONE,
    "relu": RELU,
    "gelu": GELU,
    "gelu-tanh": GELU_TANH,
    "quick-gelu": QUICK_GELU,
    "silu": SILU,
    "tanh": TANH,
    "relu2": RELU2,
}
"""The codes of activations of `nn.layers`; a layer with another one has no instruction."""


class BlockKind(NamedTuple):
    """A kind of weights in blocks: the bits of a code, whether blocks have offsets, and whether
    codes are numbers of levels.
    """

    bits: int
    has_offsets: bool = False
    has_levels: bool = False

    @property
    def zero(self) -> int:
        """The code, or the level as an unsigned byte, of 0; 0 with offsets."""
        if self.has_offsets:
            return 0
        return 128 if self.has_levels else 2 ** (self.bits - 1)

    @property
    def title(self) -> str:
        """Its name for people."""
        more = " with offsets" if self.has_offsets else ""
        return f"blocks of {self.bits} bits{more}"


# Their numbers in instructions are their places here.
BLOCK_KINDS = (
    BlockKind(8),
    BlockKind(6),
    BlockKind(5),
    BlockKind(5, has_offsets=True),
    BlockKind(4),
    BlockKind(4, has_offsets=True),
    BlockKind(4, has_levels=True),
)
BLOCK8, BLOCK6, BLOCK5, BLOCK5_OFFSETS, BLOCK4, BLOCK4_OFFSETS, BLOCK4_LEVELS = range(
    len(BLOCK_KINDS)
)
# `stored`, the type of the rows of a file: blocks as memory has them, or others (`row_types`).
AS_STORED, Q4_K, Q5_K, Q6_K, Q3_K, Q2_K, MXFP4 = range(7)
BLOCK_BITS = tuple(kind.bits for kind in BLOCK_KINDS)
ZERO_CODES = tuple(kind.zero for kind in BLOCK_KINDS)

INTEGER_FIELDS = (
    *("opcode", "waits", "tasks"),  # waits: 1 if it starts after all instructions before it
    # Operations other than matmul: units are rows, or rows times heads in a norm, times key heads
    # in attention, and times heads and parts of the queries in attention of a prompt; PANELS in
    # matmuls of many rows.
    *("units", "units_per_task"),
    *("rows", "inputs", "outputs"),  # of a matmul; the width of a norm is `inputs`
    # A weight in blocks with a `row_stride`, in bytes, has the rows of a file: `step_rows`.
    *("x", "weight", "scales", "bias", "out", "dtype", "mode", "stored"),
    *("norm", "activation"),
    # 1 if an embedding, the input of the head or a dequantized weight is rounded to bf16.
    "rounds",
    # Attention: x holds the queries. New keys and values, if any, are first stored in the cache at
    # `slot`.
    *("new_keys", "new_values", "keys", "values", "slot", "first", "length"),
    *("heads", "kv_heads", "width", "beams", "row_stride", "head_stride", "key_stride"),
    "queries",  # of a row, in attention of a prompt
    # (R, S) the cache row of each key; address 0: the same row.
    *("beam_index", "beam_index_stride"),
    *("mask", "mask_stride", "score_bias", "score_bias_row", "score_bias_head"),
    *("cos", "sin", "rotary_stride", "rotary_width", "interleaved"),
)
FLOAT_FIELDS = ("epsilon", "scale", "soft_cap")
FORMATS = [np.int64] * len(INTEGER_FIELDS) + [np.float64] * len(FLOAT_FIELDS)
INSTRUCTION = np.dtype({"names": INTEGER_FIELDS + FLOAT_FIELDS, "formats": FORMATS})

FEW_ROWS = 8  # up to here a matmul of the interpreter is faster than that of a library
# The same for weights of 16 bits in a wider type, which are converted before a library reads them.
FEW_WIDENED_ROWS = 32
PANELS = 2  # of 16 outputs, in a unit of a matmul of many rows
PROMPT_QUERIES = 256  # of a head in one unit, for which keys and values are laid out once
TASK_BYTES = 24_576  # of a weight matrix in one task
PREFETCH_BYTES = 12_288  # distance between the address that is prefetched and the one that is read


def outputs_per_task(inputs: int, dtype: int) -> int:
    """Outputs with about TASK_BYTES of weights; a multiple of 16, so that no two threads write to
    one cache line.
    """
    return max(16, TASK_BYTES // (inputs * ITEM_BYTES[dtype]) // 16 * 16)


def outputs_per_block_task(inputs: int, bits: int) -> int:
    """The same for weights in blocks of so many bits, which lie in panels of 16 outputs."""
    return max(16, 8 * TASK_BYTES // (inputs * bits) // 16 * 16)
