"""Attention: the fastest kernel for the input; replaces `nn.ops.attend` and `nn.ops.attention`.

sparse_attend      long texts of which a query reads few keys: blocks of queries, each with its keys
attend_one_query   decoding on a CPU, one query per row: an instruction of the interpreter
prompt_attention   prompts on a CPU, each query reads all keys before it: another instruction
fused_attention    PyTorch's scaled_dot_product_attention, elsewhere
packed_attention   packed rows on a CPU: matmuls over all rows at once, compiled loops between;
                   short ones in bf16: one compiled function
plain_attend       if hook points are watched, weights are dropped, scores are capped, there are
                   sinks, or the bias is trained
"""

import math
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import (
    as_array,
    compiled_interpreter,
    compiled_loops,
    is_eager_cpu,
    supports_loops,
)
from trifold.fast.instruction import ATTENTION, PROMPT_ATTENTION, PROMPT_QUERIES
from trifold.fast.layers import concatenated_linears
from trifold.fast.short_attention import short_attention, supports_short_attention
from trifold.fast.sparse import sparse_attend, supports_sparse_attend
from trifold.fast.thread_pool import DTYPES, Field, execute_one
from trifold.nn.attention import Attention, AttentionInputs, AttentionLayer
from trifold.nn.gradients import first_order
from trifold.nn.hooks import AttentionHooks
from trifold.nn.layers import Dropout
from trifold.nn.masks import Mask, PairBias, declares
from trifold.nn.ops import attend as plain_attend, share_keys, unshare_keys
from trifold.nn.packing import Packing

# Queries × keys up to which packed_attention is faster; it saves the weights.
MAX_PACKED_SCORES = 512 * 512
# The same of fp32 without a gradient: PyTorch's kernel is faster for longer rows.
MAX_PACKED_FLOAT32_SCORES = 64 * 64
# Tokens from which it is worth its loops without a gradient: loading them takes 0.3 seconds.
MIN_PACKED_TOKENS = 256
MIN_WIDTH = 512  # of all heads together, from which an instruction is faster
MIN_QUERIES = 16  # of a prompt, from which an instruction is faster
LANES = 16  # of the instruction for prompts: words of 32 bits
PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
TYPES = {precision: dtype for dtype, precision in PRECISIONS.items()}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    bias: Tensor | PairBias | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    drop: Dropout | None = None,
    hooks: AttentionHooks | None = None,
) -> Tensor:
    """See `nn.ops.attend`."""
    if (
        hooks is None
        and not isinstance(bias, Tensor)
        and supports_sparse_attend(mask, q.shape[2], k.shape[2])
    ):
        return sparse_attend(attend, q, k, v, mask, bias, soft_cap=soft_cap, sinks=sinks, drop=drop)
    if isinstance(bias, PairBias):
        bias = bias.dense(q.shape[2], k.shape[2])
    reads_weights = hooks is not None or sinks is not None or (drop is not None and drop.active)
    if not reads_weights and supports_attend_one_query(q, k, v, mask, bias):
        return attend_one_query(q, k, v, mask, bias, soft_cap)
    trains_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    if trains_bias or soft_cap is not None or reads_weights:
        return plain_attend(
            q, k, v, mask, bias=bias, soft_cap=soft_cap, sinks=sinks, drop=drop, hooks=hooks
        )
    if supports_prompt_attention(q, k, v, mask, bias):
        return prompt_attention(q, k, v)
    rows = q.shape[0]
    q, k, v = share_keys(q, k, v)
    return unshare_keys(fused_attention(q, k, v, mask, bias), rows)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    """PyTorch's kernel, with its causal flag instead of a mask if possible."""
    queries = q.shape[2]
    keys = k.shape[2]
    # Statements: in a graph for any length, comparisons are symbolic, which the kernel refuses.
    is_causal = False
    if bias is None and queries == keys:
        is_causal = _is_only_causal(mask, keys)
    offsets = None if is_causal else mask.additive(queries, keys, q, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=offsets, is_causal=is_causal)


def _is_only_causal(mask: Mask, keys: int) -> bool:
    """Whether the mask allows every pair that causality does, out of so many keys."""
    window = _window(mask, keys)
    if window is None or window < keys:
        return False
    return mask.causal and mask.keys is None


def _window(mask: Mask, keys: int) -> int | None:
    """How many of so many keys the rules of a mask let a query read; None if they say more."""
    if mask.queries is not None or len(mask.rules) > 1:
        return None
    if not all(declares(rule, "window") for rule in mask.rules):
        return None
    return next((rule.window for rule in mask.rules), keys)


# --- one query per row ----------------------------------------------------------------------------


def supports_attend_one_query(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None
) -> bool:
    """Whether q (R, H, T, D) has one query per row, large heads and no gradient, and keys, values,
    mask and bias have the layouts that the instruction reads.
    """
    if q.shape[2] != 1 or q.shape[1] * q.shape[3] < MIN_WIDTH or not q.numel():
        return False
    if torch.is_grad_enabled() or not is_eager_cpu(q) or compiled_interpreter() is None:
        return False
    if k.shape != v.shape or k.dtype is not v.dtype or k.dtype not in DTYPES:
        return False
    if bias is not None and bias.shape[1] != q.shape[1]:
        return False
    return _is_readable_mask(mask, k)


def _is_readable_mask(mask: Mask, k: Tensor) -> bool:
    """Whether the instruction for one query can read the keys that the mask allows: the last ones,
    and those that are real.
    """
    if isinstance(mask.packing, Packing) or _window(mask, k.shape[2]) is None:
        return False
    if mask.keys is not None and len(mask.keys) != len(k):
        return False
    if mask.causal and k.shape[2] > mask.offset + 1:
        return False
    return not mask.rules or (mask.causal and mask.keys is None)


def attend_one_query(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, soft_cap: float | None
) -> Tensor:
    """q (R, H, 1, D), k and v (B, H', S, D), where B divides R and H' divides H -> (R, H, 1, D).

    PyTorch would prepare its matmuls again for each length of the cache, which grows at every step.
    """
    rows, heads, _, width = q.shape
    keys = k.shape[2]
    window = _window(mask, k.shape[2])
    assert window is not None, "see `supports_attend_one_query`"
    if k.stride() != v.stride() or k.stride(3) != 1:
        k = k.contiguous()
        v = v.contiguous()
    q_float = q.float().contiguous()
    out = torch.empty(q.shape)
    fields: dict[str, Tensor | float | None] = {
        **{"opcode": ATTENTION, "dtype": DTYPES[k.dtype], "rows": rows, "units": rows * k.shape[1]},
        **{"heads": heads, "kv_heads": k.shape[1], "width": width, "beams": rows // k.shape[0]},
        **{"x": q_float, "keys": k, "values": v, "out": out},
        **{"length": keys, "first": max(0, keys - window)},
        **{"scale": 1 / math.sqrt(width), "soft_cap": soft_cap},
        **dict(zip(("row_stride", "head_stride", "key_stride"), k.stride(), strict=False)),
    }
    if mask.keys is not None:
        allowed = mask.keys.contiguous()
        fields |= {"mask": allowed, "mask_stride": allowed.shape[1]}
    if bias is not None:
        bias = bias[..., mask.evicted(1, keys) :].float().contiguous()
        fields |= {"score_bias": bias, "score_bias_head": keys}
        fields["score_bias_row"] = bias.stride(0) if bias.shape[0] > 1 else 0
    execute_one(**fields)
    return out.to(q.dtype)


# --- prompts --------------------------------------------------------------------------------------


def supports_prompt_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None
) -> bool:
    """Whether q (R, H, T, D) has many queries of the type of the keys and values, without a
    gradient, heads fill registers, and causality alone limits the keys that a query reads.

    Only of decoders: their next steps need the compiled code anyway.
    """
    if q.shape[2] < MIN_QUERIES or torch.is_grad_enabled() or bias is not None:
        return False
    if not is_eager_cpu(q) or compiled_interpreter() is None:
        return False
    if k.shape != v.shape or not q.dtype == k.dtype == v.dtype or not k.numel():
        return False
    if q.shape[3] * q.itemsize % (4 * LANES) or not _reads_all_before(mask, q, k):
        return False
    return _attends_prompts(q.dtype)


def _reads_all_before(mask: Mask, q: Tensor, k: Tensor) -> bool:
    """Whether each query reads all keys of its row that are not after it."""
    keys = k.shape[2]
    if isinstance(mask.packing, Packing) or not _is_only_causal(mask, keys):
        return False
    return len(k) == len(q) and keys == mask.offset + q.shape[2]


@cache
def _attends_prompts(dtype: torch.dtype) -> bool:
    """Whether the compiled code has the instruction in this type: on most processors with AVX2."""
    if dtype not in DTYPES:
        return False
    width = 4 * LANES // dtype.itemsize
    q, k, v = torch.arange(48.0 * width).view(3, 1, 1, 16, width).sin().to(dtype)
    expected = fused_attention(q.double(), k.double(), v.double(), Mask(causal=True), None)
    found = prompt_attention(q, k, v)
    return torch.allclose(found.double(), expected, atol=2**-6)


def prompt_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q (R, H, T, D), k and v (R, H', S, D), where H' divides H -> (R, H, T, D), in memory as
    (R, T, H, D).
    """
    rows, heads, queries, width = q.shape
    if k.stride() != v.stride() or k.stride(3) != 1:
        k = k.contiguous()
        v = v.contiguous()
    units = rows * heads * -(-queries // PROMPT_QUERIES)
    dtype = k.dtype
    q = q.to(product_type(dtype)).contiguous()
    out = q.new_empty(rows, queries, heads, width)
    fields: dict[str, Field] = {
        **{"opcode": PROMPT_ATTENTION, "dtype": DTYPES[k.dtype], "units": units},
        **{"heads": heads, "kv_heads": k.shape[1], "width": width},
        **{"queries": queries, "length": k.shape[2]},
        **{"x": q, "keys": k, "values": v, "out": out, "scale": 1 / math.sqrt(width)},
        **dict(zip(("row_stride", "head_stride", "key_stride"), k.stride(), strict=False)),
    }
    execute_one(**fields)
    return out.transpose(1, 2).to(dtype)


def product_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a prompt multiplies keys of a type."""
    from trifold.fast.instruction_sets import products_of_keys

    products = products_of_keys(PRECISIONS[dtype])
    return dtype if products is None else TYPES[products]


# --- packed rows ----------------------------------------------------------------------------------

# Causal queries per matmul; smaller blocks save little more, and their matmuls are slower.
QUERY_BLOCK = 64


def attention(
    layer: AttentionLayer, x: Tensor, memory: Tensor | None, inputs: AttentionInputs
) -> Tensor:
    """See `nn.ops.attention`. Packed rows need no padded grid if the compiled loops support the
    layer.
    """
    if not isinstance(layer, Attention):
        return layer.attend(x, memory, inputs)
    layouts = supported_packings(layer, x, memory, inputs)
    if layouts is None:
        return layer.attend(x, memory, inputs)
    if memory is None:
        q = concatenated_linears(x[0], (layer.q_proj, layer.k_proj, layer.v_proj))
        kv = None
    else:
        q = layer.q_proj(x[0])
        kv = concatenated_linears(memory[0], (layer.k_proj, layer.v_proj))
    return packed_attention(q, kv, *layouts, layer.head_width, causal=inputs.mask.causal)[None]


def supported_packings(
    layer: Attention, x: Tensor, memory: Tensor | None, inputs: AttentionInputs
) -> tuple[Packing, Packing] | None:
    """The layouts of queries and keys, if `packed_attention` supports them and this layer."""
    mask = inputs.mask
    queries = mask.packing
    keys = mask.packing if memory is None else mask.key_packing
    if not isinstance(queries, Packing) or not isinstance(keys, Packing):
        return None
    if not mask.has_only() or layer.watched or layer.drop.active:
        return None
    if inputs.bias is not None or inputs.rotary is not None or inputs.cache is not None:
        return None
    if not is_plain(layer):
        return None
    if mask.keys is not None and mask.keys is not keys.attend:
        return None
    if not _is_worth_loops(x, queries.shape[1] * keys.shape[1]) or not supports_loops(x):
        return None
    return queries, keys


def _is_worth_loops(x: Tensor, scores: int) -> bool:
    """Whether packed attention is faster for x (1, N, E) and so many scores of a row."""
    if torch.is_grad_enabled():
        return scores <= MAX_PACKED_SCORES
    most = MAX_PACKED_FLOAT32_SCORES if x.dtype is torch.float32 else MAX_PACKED_SCORES
    return scores <= most and x.shape[1] >= MIN_PACKED_TOKENS


def is_plain(layer: Attention) -> bool:
    """Whether its scores are q·k / √D alone, and its values have the width of its keys."""
    return layer.query_scale == 1.0 and has_plain_products(layer)


def has_plain_products(layer: Attention) -> bool:
    """Whether its scores are q·k with any scale, and its values have the width of its keys."""
    has_plain_scores = layer.soft_cap is None and layer.sinks is None
    has_plain_heads = layer.groups == 1 and layer.value_width == layer.head_width
    is_classical = type(layer) is Attention and layer.q_norm is None
    return is_classical and has_plain_scores and has_plain_heads


def packed_attention(
    q: Tensor, kv: Tensor | None, queries: Packing, keys: Packing, width: int, *, causal: bool
) -> Tensor:
    """Attention of packed rows with heads of size `width`, each row to itself or to its row of a
    memory -> (N, H·D).

    q (N, H·D) and kv (M, 2·H·D): keys, then values; or q (N, 3·H·D) and no kv: queries, keys,
    values.

    Causal queries are divided into blocks of about QUERY_BLOCK, each multiplied with the keys up to
    its end only: with 128, 256 and 512 tokens, 25, 38 and 44 % of the scores are not computed.
    """
    if supports_short_attention(q, queries, keys, width):
        return short_attention(q, kv, queries, keys, width, causal=causal)
    return _PackedAttention.apply(q, kv, queries, keys, width, causal)  # type: ignore[no-any-return, no-untyped-call]


class _PackedAttention(torch.autograd.Function):
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
        packed = [x for x in (q, kv) if x is not None]
        heads = q.shape[1] // (3 * width if kv is None else width)
        size = heads * width
        # The (tensor, column) of queries, keys and values.
        ctx.places = (
            [(0, 0), (0, size), (0, 2 * size)] if kv is None else [(0, 0), (1, 0), (1, size)]
        )
        ctx.shapes = [x.shape for x in packed]
        q_starts = queries.starts.numpy()
        k_starts = keys.starts.numpy()
        ctx.starts = q_starts, k_starts, k_starts
        ctx.factors = 1 / math.sqrt(width), 1.0, 1.0
        rows, n_queries = _grid_shape(queries)
        _, n_keys = _grid_shape(keys)
        ctx.grid = rows, heads
        grids = []
        for (number, column), starts, length, factor in zip(
            ctx.places, ctx.starts, (n_queries, n_keys, n_keys), ctx.factors, strict=True
        ):
            grid = q.new_empty(rows, heads, length, width)
            compiled_loops().split_heads(
                as_array(packed[number]), column, starts, factor, as_array(grid)
            )
            grids.append(grid.flatten(0, 1))
        qs, ks, vs = grids
        ctx.blocks = _blocks(n_queries, n_keys, causal)
        weights = []
        heads_out = torch.empty_like(qs)
        for block, visible in ctx.blocks:
            scores = torch.bmm(qs[:, block], ks[:, visible].transpose(1, 2))
            array = as_array(scores.unflatten(0, ctx.grid))
            compiled_loops().masked_softmax(array, q_starts, k_starts, block.start, causal)
            torch.bmm(scores, vs[:, visible], out=heads_out[:, block])
            weights.append(scores)
        out = q.new_empty(q.shape[0], size)
        padded = as_array(heads_out.unflatten(0, ctx.grid))
        compiled_loops().merge_heads(padded, q_starts, 1.0, as_array(out), 0)
        ctx.save_for_backward(qs, ks, vs, *weights)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qs, ks, vs, *weights = ctx.saved_tensors
        gs = torch.empty_like(qs)
        grid = as_array(gs.unflatten(0, ctx.grid))
        compiled_loops().split_heads(as_array(gradients[0]), 0, ctx.starts[0], 1.0, grid)
        d_q = torch.empty_like(qs)
        d_k = torch.zeros_like(ks)
        d_v = torch.zeros_like(vs)
        # In bf16, d_k and d_v are rounded after each block.
        for (block, visible), w in zip(ctx.blocks, weights, strict=True):
            d_v[:, visible].baddbmm_(w.transpose(1, 2), gs[:, block])
            d_scores = torch.bmm(gs[:, block], vs[:, visible].transpose(1, 2))
            compiled_loops().softmax_backward(
                as_array(w.flatten(0, 1)), as_array(d_scores.flatten(0, 1))
            )
            torch.bmm(d_scores, ks[:, visible], out=d_q[:, block])
            d_k[:, visible].baddbmm_(d_scores.transpose(1, 2), qs[:, block])
        packed = [torch.empty(shape, dtype=qs.dtype) for shape in ctx.shapes]
        for (number, column), starts, gradient, factor in zip(
            ctx.places, ctx.starts, (d_q, d_k, d_v), ctx.factors, strict=True
        ):
            grid = as_array(gradient.unflatten(0, ctx.grid))
            compiled_loops().merge_heads(grid, starts, factor, as_array(packed[number]), column)
        return packed[0], packed[1] if len(packed) > 1 else None, None, None, None, None


def _grid_shape(packing: Packing) -> tuple[int, int]:
    """Rows and columns of the padded grid, rounded up so that the matmuls have few shapes, with
    aligned widths.
    """
    rows, columns = packing.shape
    multiple = 1 << max(0, rows.bit_length() - 4)  # adds at most an eighth
    return -(-rows // multiple) * multiple, -(-columns // 8) * 8


def _blocks(queries: int, keys: int, causal: bool) -> list[tuple[slice, slice]]:
    """Blocks of queries, each with the keys that it may attend to; both numbers are multiples of
    8.
    """
    if not causal:
        return [(slice(0, queries), slice(0, keys))]
    count = max(1, round(queries / QUERY_BLOCK))
    ends = [queries * number // count // 8 * 8 for number in range(count + 1)]
    return [(slice(first, end), slice(0, end)) for first, end in pairwise(ends)]
