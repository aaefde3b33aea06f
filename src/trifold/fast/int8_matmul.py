"""Products of bytes with bytes, for more rows than the loops of a decoding step like, where arithmetic takes the time.

A processor multiplies bytes twice as fast as bf16. Weights are bytes already; each row of activations becomes bytes
times one scale, which costs about as much precision as the weights did. A model that computes in float32 is left alone.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from trifold.fast.instruction import BRAIN, FROM_BYTES, TO_BYTES
from trifold.fast.int8 import Int8
from trifold.fast.thread_pool import FEW, KINDS, WORTH, run_line, step_loops


@cache
def exact() -> bool:
    """Whether the library multiplies bytes right: without VNNI it adds pairs of products in 16 bits, which overflow."""
    largest = torch.full((16, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.t()) == 64 * 127 * 127).all())


def many(x: Tensor, weight: Int8) -> bool:
    """Whether x (…, K) has more than a few rows, in bf16 on a CPU, and the weight is not small."""
    return (
        x.dtype is torch.bfloat16
        and x.numel() > FEW * x.shape[-1]
        and 4 * weight.shape[0] * weight.shape[1] >= WORTH
        and not torch.is_grad_enabled()
        and weight.values.device.type == "cpu"
        and step_loops() is not None
        and exact()
    )


def bytes_product(x: Tensor, weight: Int8, bias: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """x (…, K) · weightᵀ + bias -> (…, N), x rounded to bytes row by row; of the type of x, or float32 where that is
    asked for. Its twin is Int8.times.
    """
    x = x.contiguous()
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    small, scales = torch.empty(rows, inputs, dtype=torch.int8), torch.empty(rows)
    about = {"rows": rows, "units": rows}
    run_line(op=TO_BYTES, kind=BRAIN, **about, inputs=inputs, x=x, out=small, scales=scales)
    sums = torch._int_mm(small, weight.values.t())
    # Numbers of fp32 take the place of their sums.
    dtype, shape = dtype or x.dtype, (*x.shape[:-1], outputs)
    out = sums.view(dtype).view(shape) if dtype is torch.float32 else torch.empty(shape, dtype=dtype)
    added = None if bias is None else bias.float()
    fields = {"x": sums, "weight": scales, "scales": weight.scales, "bias": added, "out": out}
    run_line(op=FROM_BYTES, kind=KINDS[out.dtype], **about, outputs=outputs, **fields)
    return out
