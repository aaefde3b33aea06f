"""The lines that a decoding step is written down as: instructions for step_loops.py, an array of LINE.

Arrays are given by their addresses, 0 where there is none; who gives them keeps them alive. Strides count numbers,
not bytes.
"""

from __future__ import annotations

import numpy as np

NORM, PRODUCT, ATTENTION, TO_BYTES, FROM_BYTES = range(5)
FLOAT, BRAIN, BYTE = 0, 1, 2  # kinds of stored numbers: fp32, bf16, int8
SIZES = (4, 2, 1)  # their bytes
SET, ADD, TIMES = 0, 1, 2  # what becomes of the output that is already there
LAYER, RMS = 0, 1
NONE, RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH = range(7)

WHOLE = (
    *("op", "waits", "tasks"),
    # Of what is no product: rows, or heads of rows in attention, and how many of them make a task.
    *("units", "portion"),
    *("rows", "inputs", "outputs"),  # of a product; a norm's width is `inputs`
    *("x", "weight", "scales", "bias", "out", "kind", "mode"),
    *("norm", "activation"),
    # Attention: x holds the queries; new_keys and new_values go to place `slot` first, unless there are none.
    *("new_keys", "new_values", "keys", "values", "slot", "first", "length"),
    *("heads", "kv_heads", "width", "sharing", "row_stride", "head_stride", "key_stride"),
    *("lineage", "lineage_stride"),  # (R, S) whose row each key of a row stands in; 0: its own
    *("allowed", "allowed_stride", "offsets", "offsets_row", "offsets_head"),
    *("cos", "sin", "turn_stride", "turned", "interleaved"),
)
LINE = np.dtype(
    [(name, np.int64) for name in WHOLE] + [(name, np.float64) for name in ("epsilon", "scale", "cap")]
)

CHUNK = 24_576  # bytes of a matrix that make a task
AHEAD = 12_288  # bytes that memory is asked for before they are needed


def outputs_of_a_task(inputs: int, kind: int) -> int:
    """About CHUNK bytes of weights; in sixteens, so that no two threads write to one line of memory."""
    return max(16, CHUNK // (inputs * SIZES[kind]) // 16 * 16)
