"""Attention of short packed rows in bf16, which `attention.packed_attention` calls; see
`attention_loops`.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trifold.fast import as_array, compiled_attention, has_instructions
from trifold.nn.gradients import first_order
from trifold.nn.packing import Packing

MAX_LENGTH = 128  # of a row, up to which it is faster than matmuls over all rows
WORDS = 32  # bf16 in a register


def supports_short_attention(q: Tensor, queries: Packing, keys: Packing, width: int) -> bool:
    """Whether the rows are short, the heads fill registers, and the processor has the instructions.

    The number of threads does not matter, so that all give the same result.
    """
    if q.dtype is not torch.bfloat16 or width % WORDS:
        return False
    if max(queries.shape[1], keys.shape[1]) > MAX_LENGTH:
        return False
    return compiled_attention() is not None and has_instructions("bfloat16")


def short_attention(
    q: Tensor, kv: Tensor | None, queries: Packing, keys: Packing, width: int, *, causal: bool
) -> Tensor:
    """See `attention.packed_attention`."""
    return _ShortAttention.apply(q, kv, queries, keys, width, causal)  # type: ignore[no-any-return, no-untyped-call]


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv: Tensor | None,
        queries: Packing,
        keys: Packing,
        width: int,
        causal: bool,
    ) -> Tensor:
        size = q.shape[1] // 3 if kv is None else q.shape[1]
        ctx.columns = (0, size, 2 * size) if kv is None else (0, 0, size)
        ctx.starts = queries.starts.numpy(), keys.starts.numpy()
        ctx.causal = causal
        packed = _pair(q, kv)
        out = q.new_empty(q.shape[0], size)
        statistics = torch.empty(2, size // width, q.shape[0])
        compiled_attention().forward(
            packed, ctx.columns, ctx.starts, causal, as_array(out), as_array(statistics)
        )
        ctx.save_for_backward(q, kv, statistics)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, statistics = ctx.saved_tensors
        d_q = torch.empty(q.shape, dtype=q.dtype)
        d_kv = None if kv is None else torch.empty(kv.shape, dtype=kv.dtype)
        compiled_attention().backward(
            _pair(q, kv),
            ctx.columns,
            ctx.starts,
            ctx.causal,
            as_array(statistics),
            as_array(gradients[0]),
            _pair(d_q, d_kv),
        )
        return d_q, d_kv, None, None, None, None


def _pair(q: Tensor, kv: Tensor | None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The matrix with queries, and that with keys and values, which may be the same."""
    first = as_array(q)
    return first, first if kv is None else as_array(kv)
