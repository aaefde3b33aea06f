"""Attention by the kernel that suits: the equation, short products, PyTorch's fused kernel, or compiled loops."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast.kernels import compiled, short_attention
from trifold.fast.linear import stacked
from trifold.fast.packed_attention import packed_attention
from trifold.fast.single_query import asks_once, attend_once
from trifold.nn.attention import Attention
from trifold.nn.cache import LayerCache
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout
from trifold.nn.masks import Mask
from trifold.nn.ops import attend as plain_attend
from trifold.nn.ops import share_keys, unshare_keys
from trifold.nn.relative import ScoreBias
from trifold.nn.rotary import Rotations

Kernel: TypeAlias = Literal["plain", "short", "fused"]

SHORT = 128 * 128  # queries times keys up to which `short_attention` is faster on a CPU
# … and up to which the compiled loops train on packed rows; they save the weights for the backward pass.
LOOPED = 512 * 512


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
    drop: Dropout | None = None,
    pattern: HookPoint | None = None,
    kernel: Kernel | None = None,
) -> Tensor:
    """See `nn.ops.attend`. `kernel` selects one of "plain" (the equation, with weights that can be read and dropped),
    "short" and "fused"; by default the fastest that covers the case.
    """
    reads_weights = (pattern is not None and pattern.watched) or (drop is not None and drop.active)
    if kernel is None and not reads_weights and asks_once(q, k, mask):
        return attend_once(q, k, v, mask, bias, soft_cap).view(q.shape)
    trains_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    if kernel is None:
        plain = trains_bias or soft_cap is not None or reads_weights
        kernel = "plain" if plain else _fastest(q, k)
    if kernel == "plain":
        return plain_attend(q, k, v, mask, bias=bias, soft_cap=soft_cap, drop=drop, pattern=pattern)
    rows = q.shape[0]
    q, k, v = share_keys(q, k, v)
    if kernel == "short":
        return unshare_keys(short_attention(q, k, v, mask.additive_rows(q, k.shape[2], bias)), rows)
    return unshare_keys(_library(q, k, v, mask, bias), rows)


def _library(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if bias is not None:
        offsets = mask.additive(queries, keys, q, bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=offsets)
    windowed = mask.window is not None and mask.window < keys
    plain_causal = mask.causal and mask.keys is None and queries == keys and not windowed
    allowed = None if plain_causal else mask.dense(queries, keys, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=plain_causal)


def _fastest(q: Tensor, k: Tensor) -> Kernel:
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return "fused"
    queries = q.shape[2] * (q.shape[0] // k.shape[0])
    return "short" if queries * k.shape[2] <= SHORT else "fused"


def attention(
    layer: Attention,
    x: Tensor,
    memory: Tensor | None,
    mask: Mask,
    bias: ScoreBias | None,
    rotary: Rotations | None,
    cache: LayerCache | None,
) -> Tensor:
    """See `nn.ops.attention`. Compiled loops attend to packed rows without laying them out on a padded grid."""
    if mask.packing is None or bias is not None or rotary is not None or not _loops_fit(layer, x, mask):
        return layer.attend(x, memory, mask, bias, rotary, cache)
    if memory is None:
        q, kv = stacked(x[0], (layer.q_proj, layer.k_proj, layer.v_proj)), None
    else:
        q, kv = layer.q_proj(x[0]), stacked(memory[0], (layer.k_proj, layer.v_proj))
    keys = mask.key_packing or mask.packing
    return packed_attention(q, kv, mask.packing, keys, layer.head_width, causal=mask.causal)[None]


def _loops_fit(layer: Attention, x: Tensor, mask: Mask) -> bool:
    """Whether the loops cover this layer and these packed rows."""
    if mask.packing is None or mask.window is not None or layer.pattern.watched or layer.drop.active:
        return False
    if layer.groups > 1 or layer.soft_cap is not None or layer.query_scale != 1.0:
        return False
    queries, keys = mask.packing.shape[1], (mask.key_packing or mask.packing).shape[1]
    return queries * keys <= LOOPED and compiled(x) is not None
