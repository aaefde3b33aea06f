"""Attention where every row asks one query, as in a decoding step, by the compiled loops; its twin is `attend`.

A library prepares its products anew for every number of keys, which is another one at every step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trifold.fast.instruction import ATTENTION
from trifold.fast.thread_pool import KINDS, run_line, step_loops
from trifold.nn.masks import Mask

WORTH = 512  # width of all heads together from which on it is worth to begin with compiled loops


def asks_once(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Whether this is a case for `attend_once`."""
    return (
        q.shape[2] == 1
        and q.shape[1] * q.shape[3] >= WORTH
        and not torch.is_grad_enabled()
        and q.device.type == "cpu"
        and k.dtype in KINDS
        and mask.packing is None
        and (mask.window is None or mask.keys is None)
        and step_loops() is not None
    )


def attend_once(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, soft_cap: float | None
) -> Tensor:
    """q (R, H, 1, D), k and v (B, H', S, D) with B and H' divisors of R and H -> (R, 1, H·D).

    Rows that stand together share a row of k and v, heads likewise; scores are times 1 / √D.
    """
    rows, heads, _, width = q.shape
    keys, gone = k.shape[2], max(0, mask.offset + 1 - k.shape[2]) if mask.causal else 0
    if k.stride() != v.stride() or k.stride(3) != 1:
        k, v = k.contiguous(), v.contiguous()
    asked = q.float().contiguous()
    out = torch.empty(rows, 1, heads * width)
    marks = None if mask.keys is None else mask.keys.contiguous()
    offsets = None if bias is None else bias[..., gone:].float().contiguous()
    fields: dict[str, Tensor | float | None] = {
        **{"op": ATTENTION, "kind": KINDS[k.dtype], "rows": rows, "units": rows * k.shape[1]},
        **{"heads": heads, "kv_heads": k.shape[1], "width": width, "sharing": rows // k.shape[0]},
        **{"x": asked, "keys": k, "values": v, "out": out},
        **{"length": keys, "first": max(0, keys - mask.window) if mask.window else 0},
        **{"scale": 1 / math.sqrt(width), "cap": soft_cap},
        **dict(zip(("row_stride", "head_stride", "key_stride"), k.stride(), strict=False)),
    }
    if marks is not None:
        fields |= {"allowed": marks, "allowed_stride": marks.shape[1]}
    if offsets is not None:
        fields |= {"offsets": offsets, "offsets_head": keys}
        fields["offsets_row"] = offsets.stride(0) if offsets.shape[0] > 1 else 0
    run_line(**fields)
    return out.to(q.dtype)
