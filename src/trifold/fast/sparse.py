"""Attention to few keys of a long text: windows, segments, blocks, global tokens (`nn.masks.Mask`).

Queries are divided into blocks. A block reads the slice of keys that its queries can reach, and
single keys from elsewhere; inside, the mask's own rule decides. Queries that attend to all keys
follow. Time and memory grow with the length of the text and not with its square: the backward pass
computes each block again.

Shapes: B batch, T queries, S keys, H heads, D head size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trifold.nn.masks import Blocks, Mask, PairBias
from trifold.nn.rng import ReplayThreadRng
from trifold.nn.spans import Spans

BLOCK = 128  # queries, elsewhere than in blocks and segments
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Block:
    """Some queries, and the keys that they read: a slice, and others (B or 1, H or 1, N), where
    they are `valid`.
    """

    queries: slice
    keys: slice
    others: Tensor | None = None
    valid: Tensor | None = None


def reads_few_keys(mask: Mask, queries: int, keys: int) -> bool:
    """Whether blocks of queries read less than half of the keys."""
    if mask.spans is not None:
        return queries >= 2 * BLOCK
    if (
        not mask.is_local
        or mask.order is not None
        or queries < 2 * BLOCK
        or keys < mask.offset + queries
    ):
        return False
    return 2 * (_size(mask) + sum(_reach(mask))) < keys


def sparse_attend(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: PairBias | None,
    **options: Any,
) -> Tensor:
    """`ops.attend` of q (B, H, T, D) and k, v (B, H', S, D); `attend` is called for parts of it."""
    positions = mask.positions(q.shape[2], q.device)
    trained = {name: x for name, x in options.items() if isinstance(x, Tensor)}
    weights = bias.weights if bias is not None else ()

    def compute(block: Block, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        table, offsets = _rule(mask, block, positions, bias, others[len(trained) :])
        own = options | dict(zip(trained, others, strict=False))
        return attend(q, k, v, Mask(table=table), bias=offsets, **own)

    blocks = _blocks(mask, q.shape[2], k.shape[2], positions)
    out: Tensor = _Blocks.apply(compute, blocks, q, k, v, *trained.values(), *weights)  # type: ignore[no-untyped-call]
    every = _reads_all(mask, q.shape[2], q.device)
    if every is None or not bool(every.any()):
        return out
    # The queries that attend to all keys: their numbers are in a grid (B, N).
    index, valid = _columns(every)
    rows, cells = valid.expand(len(q), -1).nonzero(as_tuple=True)
    index = index.expand(len(q), -1)
    allowed = None if mask.keys is None else mask.keys[:, None, None]
    if mask.causal:
        before = torch.arange(k.shape[2], device=q.device) <= index[:, None, :, None] + mask.offset
        allowed = before if allowed is None else allowed & before
    offsets = (
        None if bias is None else bias.compute(index + mask.offset, slice(0, k.shape[2]), *weights)
    )
    found = attend(_take(q, index[:, None]), k, v, Mask(table=allowed), bias=offsets, **options)
    places = rows, index[rows, cells]
    return out.transpose(1, 2).index_put(places, found.transpose(1, 2)[rows, cells]).transpose(1, 2)


# --- which keys -----------------------------------------------------------------------------------


def _size(mask: Mask) -> int:
    """Queries of a block."""
    if mask.blocks is not None:
        return mask.blocks.size
    return BLOCK if mask.segment is None else mask.segment[0]


def _reach(mask: Mask) -> tuple[int, int]:
    """How many real keys before and after a query may be visible."""
    if mask.blocks is not None:
        return mask.blocks.size, mask.blocks.size
    before = [] if mask.window is None else [mask.window - 1]
    before += [] if mask.segment is None else [sum(mask.segment)]
    return min(before), 0 if mask.causal else min(before)


def _blocks(mask: Mask, queries: int, keys: int, positions: Tensor) -> list[Block]:
    size = _size(mask)
    starts = range(0, queries, size)
    parts = [slice(start, min(start + size, queries)) for start in starts]
    if mask.spans is not None:
        return [_block_of_spans(mask.spans, part) for part in parts]
    own, (before, after) = positions[:, mask.offset :], _reach(mask)
    first = own[:, [part.start for part in parts]] - before
    last = own[:, [part.stop - 1 for part in parts]] + after
    lows = torch.searchsorted(positions.contiguous(), first)
    highs = torch.searchsorted(positions.contiguous(), last, right=True)
    if (
        mask.keys is not None
    ):  # padding does not widen the slice, nor do rows whose queries are padding
        left, right = (x.int().argmax(1, keepdim=True) for x in (mask.keys, mask.keys.flip(1)))
        lows, highs = lows.maximum(left), highs.minimum(keys - right)
        spread = mask.keys[:, mask.offset : mask.offset + queries].split(size, 1)
        real = torch.stack([part.any(1) for part in spread], 1)
        lows, highs = lows.where(real, keys), highs.where(real, 1)
    blocks, anywhere = [], None if mask.globals is None else _columns(mask.globals)
    for number, (part, low, high) in enumerate(
        zip(parts, lows.amin(0).tolist(), highs.amax(0).tolist(), strict=True)
    ):
        if mask.blocks is not None:  # these count padding
            low, high = max(0, part.start - size), min(keys, part.start + 2 * size)
        high = min(high, mask.offset + part.stop) if mask.causal else high
        near = slice(min(low, high - 1), high)
        others = anywhere if mask.blocks is None else _keys_of_blocks(mask.blocks, number, keys)
        if others is None:
            blocks.append(Block(part, near))
        else:
            index, valid = (x if x.dim() == 3 else x[:, None] for x in others)
            blocks.append(
                Block(part, near, index, valid & ((index < near.start) | (index >= near.stop)))
            )
    return blocks


def _block_of_spans(spans: Spans, queries: slice) -> Block:
    """A block of tokens reads a slice of tokens, and some spans of each higher level."""
    firsts, read = torch.tensor(spans.starts), []
    for side, (low, high, _) in enumerate(spans.bounds[..., queries].cpu()):
        low, high = (-high.amax(1), -low.amin(1)) if side else (low.amin(1), high.amax(1))
        limits = low.clamp_min(0) + firsts[:-1], high.minimum(firsts.diff()) + firsts[:-1]
        read += [
            torch.arange(*each) for each in torch.stack(limits, 1).tolist() if each[0] < each[1]
        ]
    keys = torch.cat(read).unique()
    tokens, others = keys[keys < firsts[1]].tolist(), keys[keys >= firsts[1]][None, None]
    others = others.to(spans.bounds.device)
    return Block(
        queries, slice(tokens[0], tokens[-1] + 1), others, torch.ones_like(others, dtype=torch.bool)
    )


def _columns(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Boolean (B, S) -> the columns that are True in each row (B, N), and whether a row has so
    many.
    """
    counts = chosen.sum(1, keepdim=True)
    index = chosen.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
    return index, torch.arange(index.shape[1], device=chosen.device) < counts


def _keys_of_blocks(blocks: Blocks, number: int, keys: int) -> tuple[Tensor, Tensor]:
    """The keys (B or 1, H, N) of the first, the last and the random blocks of a block of queries;
    which ones exist.
    """
    random = blocks.random[:, :, min(number, blocks.random.shape[2] - 1)]
    rows = max(len(random), len(blocks.last))
    random = random.expand(rows, -1, -1)
    last = blocks.last[:, None, None].expand(*random.shape[:2], 1)
    chosen = torch.cat([torch.zeros_like(last), last, random], -1) * blocks.size
    index = (chosen[..., None] + torch.arange(blocks.size, device=chosen.device)).flatten(2)
    return index.clamp_max(keys - 1), index < keys


def _reads_all(mask: Mask, queries: int, device: torch.device) -> Tensor | None:
    """(B or 1, T), the queries that attend to all keys."""
    if mask.blocks is not None:
        return mask.blocks.reads_all(torch.arange(queries, device=device))
    return None if mask.globals is None else mask.globals[:, mask.offset : mask.offset + queries]


def _rule(
    mask: Mask, block: Block, positions: Tensor, bias: PairBias | None, weights: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """What the queries of a block may read, and the bias of their scores: (B or 1, H or 1, T, N) or
    None.
    """
    q = slice(mask.offset + block.queries.start, mask.offset + block.queries.stop)
    table = mask.allowed(q, block.keys, positions, positions.device)
    offsets = _bias(mask, q, block.keys, bias, weights)
    if block.others is None or block.valid is None:
        return table, offsets
    far = mask.allowed(q, block.others, positions, positions.device)
    assert far is not None, "a local mask restricts distant keys"
    near = far.new_ones(()) if table is None else table
    near = near.expand(*far.shape[:3], block.keys.stop - block.keys.start)
    if offsets is not None:
        more = _bias(mask, q, block.others, bias, weights)
        assert more is not None, "the same bias"
        offsets = torch.cat([offsets.expand(*more.shape[:2], -1, -1), more], -1)
    return torch.cat([near, far & block.valid[:, :, None]], -1), offsets


def _bias(
    mask: Mask, q: slice, k: slice | Tensor, bias: PairBias | None, weights: Sequence[Tensor]
) -> Tensor | None:
    counts = None if mask.blocks is None else mask.blocks.offsets(q, k)
    found = None if bias is None else bias.compute(q, k, *weights)
    return counts if found is None else found if counts is None else counts + found


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (B', H, S, D) at index (B or 1, H or 1, N) -> (B, H, N, D)."""
    rows, heads = max(len(x), len(index)), max(x.shape[1], index.shape[1])
    index = index[..., None].expand(rows, heads, -1, x.shape[3])
    return x.expand(rows, heads, -1, -1).gather(2, index)


# --- blocks one after the other -------------------------------------------------------------------


class _Blocks(torch.autograd.Function):
    """compute(block, queries, keys, values, *others) -> (B, H, T, D) for all blocks."""

    @staticmethod
    def forward(ctx: Any, compute: Attend, blocks: list[Block], *tensors: Tensor) -> Tensor:
        ctx.compute, ctx.blocks, ctx.rng = compute, blocks, ReplayThreadRng()
        ctx.save_for_backward(*tensors)
        q, k, v, *others = tensors
        # In the layout of merged heads, which then need no copy.
        out = q.new_empty(len(q), q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        for block in blocks:
            out[:, :, block.queries] = compute(block, *_inputs(block, q, k, v), *others)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *others = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        found = [
            torch.zeros_like(x) if need else None
            for x, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with ctx.rng:
            for block in ctx.blocks:
                with torch.enable_grad():
                    parts = (*_inputs(block, q, k, v), *others)
                    inputs = [
                        x.detach().requires_grad_(n) for x, n in zip(parts, needed, strict=True)
                    ]
                    out = ctx.compute(block, *inputs)
                wanted = [x for x in inputs if x.requires_grad]
                of_inputs = [*torch.autograd.grad(out, wanted, gradients[0][:, :, block.queries])]
                for number, whole in enumerate(found):
                    if whole is not None:
                        _add(whole, of_inputs.pop(0), block, number)
        return None, None, *found


def _inputs(block: Block, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The queries of a block, and the keys and values that it reads."""
    near = [q[:, :, block.queries], k[:, :, block.keys], v[:, :, block.keys]]
    if block.others is not None:
        near[1:] = (
            torch.cat([part, _take(x, block.others)], 2)
            for part, x in zip(near[1:], (k, v), strict=True)
        )
    return near


def _add(whole: Tensor, part: Tensor, block: Block, number: int) -> None:
    """Add the gradient of a block's tensor: of queries (0), keys (1), values (2), or of all of
    another tensor.
    """
    if number == 0:
        whole[:, :, block.queries] = part
    elif number > 2:
        whole += part
    else:
        count = block.keys.stop - block.keys.start
        whole[:, :, block.keys] += part[:, :, :count]
        if block.others is not None:
            index = block.others[..., None].expand(*part.shape[:2], -1, part.shape[3])
            whole.scatter_add_(2, index, part[:, :, count:])
