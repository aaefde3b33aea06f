"""Attention to few keys of a long text: masks whose rules state what a block of queries reads
(`Rule.blockwise`).

Queries are divided into blocks. A block reads the slice of keys that its queries can reach, and
single keys from elsewhere; inside, the rules of the mask decide. Queries that attend to all keys
follow. Time and memory grow with the length of the text and not with its square: the backward pass
computes each block again.

Shapes: B batch, T queries, S keys, H heads, D head size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from trifold.nn.gradients import first_order
from trifold.nn.masks import Mask, MaskPart, PairBias, PairTable, columns, declares
from trifold.nn.rng import ReplayThreadRng

BLOCK = 128  # queries of a block, if no rule states their number (`Rule.block`)
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class QueryBlock:
    """Some queries, and the keys that they read: a slice, and others (B or 1, H or 1, N), where
    they are `valid`.
    """

    queries: slice
    keys: slice
    others: Tensor | None = None
    valid: Tensor | None = None


def supports_sparse_attend(mask: Mask, queries: int, keys: int) -> bool:
    """Whether the rules are supported, and blocks of queries read less than half of the keys."""
    if not mask.rules or not is_blockwise(mask):
        return False
    if queries < 2 * BLOCK or keys < mask.offset + queries:
        return False
    reach = _reach(mask)
    return reach is not None and 2 * (_size(mask) + sum(reach)) < keys


def is_blockwise(mask: Mask) -> bool:
    """Whether the rules are of one group of `Rule.blockwise`. No two rules of a group name the same
    key in `Rule.others`.
    """
    groups = {declares(rule, "blockwise") for rule in mask.rules}
    return len(groups) == 1 and None not in groups and mask.has_only(*map(type, mask.rules))


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

    def compute(block: QueryBlock, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        table, offsets = _block_mask(mask, block, positions, bias, others[len(trained) :])
        own = options | dict(zip(trained, others, strict=False))
        return attend(q, k, v, table, bias=offsets, **own)

    blocks = _blocks(mask, q.shape[2], k.shape[2], positions)
    out: Tensor = _Blocks.apply(compute, blocks, q, k, v, *trained.values(), *weights)  # type: ignore[no-untyped-call]
    every = _reads_all(mask, q.shape[2], q.device)
    if every is None or not bool(every.any()):
        return out
    # The queries that attend to all keys: their numbers are in a grid (B, N).
    index, valid = columns(every)
    rows, cells = valid.expand(len(q), -1).nonzero(as_tuple=True)
    index = index.expand(len(q), -1)
    allowed = None if mask.keys is None else mask.keys[:, None, None]
    if mask.causal:
        before = torch.arange(k.shape[2], device=q.device) <= index[:, None, :, None] + mask.offset
        allowed = before if allowed is None else allowed & before
    offsets = None
    if bias is not None:
        offsets = bias.compute(index + mask.offset, slice(0, k.shape[2]), *weights)
    found = attend(_take(q, index[:, None]), k, v, _mask_of(allowed), bias=offsets, **options)
    places = rows, index[rows, cells]
    return out.transpose(1, 2).index_put(places, found.transpose(1, 2)[rows, cells]).transpose(1, 2)


def _mask_of(allowed: Tensor | None) -> Mask:
    return Mask() if allowed is None else Mask(rules=(PairTable(allowed),))


# --- which keys -----------------------------------------------------------------------------------


def _size(mask: Mask) -> int:
    """Queries of a block."""
    return next((rule.block for rule in mask.rules if rule.block is not None), BLOCK)


def _reach(mask: Mask) -> tuple[int, int] | None:
    """How many keys before and after a query may be visible, apart from single ones elsewhere."""
    found = [reach for rule in mask.rules if (reach := rule.reach(mask.causal)) is not None]
    if not found:
        return None
    return min(before for before, _ in found), min(after for _, after in found)


def _blocks(mask: Mask, queries: int, keys: int, positions: Tensor) -> list[QueryBlock]:
    size = _size(mask)
    blocks = []
    parts = [slice(start, min(start + size, queries)) for start in range(0, queries, size)]
    for part, near in zip(parts, _near(mask, parts, keys, positions), strict=True):
        found = [other for rule in mask.rules if (other := rule.others(part, keys)) is not None]
        if not found:
            blocks.append(QueryBlock(part, near))
            continue
        index, valid = (torch.cat(each, -1) for each in zip(*_same_rows(found), strict=True))
        is_near = (index >= near.start) & (index < near.stop)
        blocks.append(QueryBlock(part, near, index, valid & ~is_near))
    return blocks


def _same_rows(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Tensors (B or 1, H or 1, N), expanded to the same B and H."""
    rows = max(index.shape[0] for index, _ in pairs)
    heads = max(index.shape[1] for index, _ in pairs)
    shape = rows, heads, -1
    return [(index.expand(shape), valid.expand(shape)) for index, valid in pairs]


def _near(mask: Mask, parts: list[slice], keys: int, positions: Tensor) -> list[slice]:
    """The slice of keys that each block of queries reads."""
    found = [slice(0, keys)] * len(parts)
    local = [rule for rule in mask.rules if rule.reach(mask.causal) is not None]
    if any(rule.counts_real for rule in local):
        found = _near_by_position(mask, parts, keys, positions)
    for rule in local:  # all rules must allow a key, so the slice of any of them suffices
        if not rule.counts_real:
            found = [rule.near(part, keys, mask.causal) for part in parts]
    for number, (part, near) in enumerate(zip(parts, found, strict=True)):
        stop = min(near.stop, mask.offset + part.stop) if mask.causal else near.stop
        found[number] = slice(min(near.start, stop - 1), stop)  # never empty
    return found


def _near_by_position(mask: Mask, parts: list[slice], keys: int, positions: Tensor) -> list[slice]:
    """The same for rules that count real tokens."""
    reach = _reach(mask)
    assert reach is not None, "a rule is local"
    before, after = reach
    own = positions[:, mask.offset :]
    first = own[:, [part.start for part in parts]] - before
    last = own[:, [part.stop - 1 for part in parts]] + after
    lows = torch.searchsorted(positions.contiguous(), first)
    highs = torch.searchsorted(positions.contiguous(), last, right=True)
    if mask.keys is not None:
        # Padding does not widen the slice, nor do rows whose queries are padding.
        left, right = (x.int().argmax(1, keepdim=True) for x in (mask.keys, mask.keys.flip(1)))
        lows = lows.maximum(left)
        highs = highs.minimum(keys - right)
        real = [mask.keys[:, mask.offset :][:, part].any(1) for part in parts]
        is_real = torch.stack(real, 1)
        lows = lows.where(is_real, keys)
        highs = highs.where(is_real, 1)
    return [
        slice(*each) for each in zip(lows.amin(0).tolist(), highs.amax(0).tolist(), strict=True)
    ]


def _reads_all(mask: Mask, queries: int, device: torch.device) -> Tensor | None:
    """(B or 1, T), the queries that attend to all keys."""
    own = slice(mask.offset, mask.offset + queries)
    found = [every for rule in mask.rules if (every := rule.reads_all(own, device)) is not None]
    return reduce(torch.logical_or, found) if found else None


def _block_mask(
    mask: Mask,
    block: QueryBlock,
    positions: Tensor,
    bias: PairBias | None,
    weights: Sequence[Tensor],
) -> tuple[Mask, Tensor | None]:
    """What the queries of a block may read, and the bias of their scores (B or 1, H or 1, T, N)."""
    q = slice(mask.offset + block.queries.start, mask.offset + block.queries.stop)
    part = MaskPart(mask, q, block.keys, positions.device, positions)
    table = mask.allowed(part)
    offsets = _bias(part, bias, weights)
    if block.others is None or block.valid is None:
        return _mask_of(table), offsets
    distant = replace(part, keys=block.others)
    far = mask.allowed(distant)
    assert far is not None, "a local mask restricts distant keys"
    near = far.new_ones(()) if table is None else table
    near = near.expand(*far.shape[:3], block.keys.stop - block.keys.start)
    if offsets is not None:
        more = _bias(distant, bias, weights)
        assert more is not None, "the same bias"
        offsets = torch.cat([offsets.expand(*more.shape[:2], -1, -1), more], -1)
    return _mask_of(torch.cat([near, far & block.valid[:, :, None]], -1)), offsets


def _bias(part: MaskPart, bias: PairBias | None, weights: Sequence[Tensor]) -> Tensor | None:
    added = part.mask.added(part)
    if bias is None:
        return added
    found = bias.compute(part.queries, part.keys, *weights)
    return found if added is None else added + found


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (B', H, S, D) at index (B or 1, H or 1, N) -> (B, H, N, D)."""
    rows = max(len(x), len(index))
    heads = max(x.shape[1], index.shape[1])
    index = index[..., None].expand(rows, heads, -1, x.shape[3])
    return x.expand(rows, heads, -1, -1).gather(2, index)


# --- blocks one after the other -------------------------------------------------------------------


class _Blocks(torch.autograd.Function):
    """compute(block, queries, keys, values, *others) -> (B, H, T, D) for all blocks."""

    @staticmethod
    def forward(ctx: Any, compute: Attend, blocks: list[QueryBlock], *tensors: Tensor) -> Tensor:
        ctx.compute = compute
        ctx.blocks = blocks
        ctx.rng = ReplayThreadRng()
        ctx.save_for_backward(*tensors)
        q, k, v, *others = tensors
        # In the layout of merged heads, which then need no copy.
        out = q.new_empty(len(q), q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        for block in blocks:
            out[:, :, block.queries] = compute(block, *_inputs(block, q, k, v), *others)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, as checkpointing requires
        q, k, v, *others = saved
        needed = ctx.needs_input_grad[2:]
        found = [
            torch.zeros_like(x) if need else None for x, need in zip(saved, needed, strict=True)
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


def _inputs(block: QueryBlock, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The queries of a block, and the keys and values that it reads."""
    near = [q[:, :, block.queries], k[:, :, block.keys], v[:, :, block.keys]]
    if block.others is not None:
        near[1:] = (
            torch.cat([part, _take(x, block.others)], 2)
            for part, x in zip(near[1:], (k, v), strict=True)
        )
    return near


def _add(whole: Tensor, part: Tensor, block: QueryBlock, number: int) -> None:
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
