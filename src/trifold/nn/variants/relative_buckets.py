"""Learned biases of distances: s_ij + b[bucket(j − i)], per head, shared by all layers
                                                                 (Raffel et al. 2020, section 2.1)

Shapes: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow, times
from trifold.nn.masks import Mask, PairBias, at_pairs
from trifold.nn.packing import Packing
from trifold.nn.parts import ScoresPart
from trifold.nn.problems import Problems

if TYPE_CHECKING:
    from trifold.nn.stack import Stack

SHOWN = 128  # the largest distance in figures


def buckets(distances: Tensor, count: int, farthest: int, *, both_ways: bool) -> Tensor:
    """Distances j − i -> buckets in [0, count): near distances have one each, others share on a
    logarithmic scale.

    With `both_ways` the upper half of the buckets is for keys after the query; otherwise those are
    in bucket 0.
    """
    after = torch.zeros_like(distances)
    if both_ways:
        count //= 2
        after = (distances > 0).long() * count
        apart = distances.abs()
    else:
        apart = (-distances).clamp_min(0)
    exact = count // 2
    growth = torch.log(apart.clamp_min(1).float() / exact) / math.log(farthest / exact)
    far = (exact + (growth * (count - exact)).long()).clamp_max(count - 1)
    return after + torch.where(apart < exact, apart, far)


class RelativeOffsets(nn.Module):
    """A learned bias per bucket of distances and head: weight (buckets, H).

    For summaries of blocks of tokens, the distance is that of blocks, with a bias of its own:
    summary_weight.
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.window = max(config.window(layer) or math.inf for layer in range(config.n_layers))
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.n_heads))
        self.summary_weight = (
            nn.Parameter(torch.empty_like(self.weight)) if config.summary_block else None
        )
        self.farthest = config.relative_distance

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Tensor | PairBias:
        """-> (B or 1, H, T, S)."""
        is_long = queries > self.window and not mask.offset
        if is_long or self.summary_weight is not None:
            weights = tuple(w for w in (self.weight, self.summary_weight) if w is not None)
            bias = PairBias(weights, partial(self._of_pairs, mask, mask.positions(queries, device)))
            keys = queries if mask.keys is None else mask.keys.shape[1]
            return bias if is_long else bias.dense(queries, keys)
        distances = _one_row(mask).distances(queries, device)
        return self.weight[self._buckets(distances, mask)].permute(0, 3, 1, 2)

    def _of_pairs(
        self, mask: Mask, positions: Tensor, q: slice | Tensor, k: slice | Tensor, *weights: Tensor
    ) -> Tensor:
        own, others = at_pairs(positions, q, k)
        index = self._buckets(others - own, mask)
        for rule in mask.rules:
            if (found := rule.own_distances(q, k)) is not None:
                is_other, distances = found
                rows = len(weights[0]) + self._buckets(distances, mask)
                index = torch.where(is_other, rows, index)
        return torch.cat(weights)[index[:, 0]].permute(0, 3, 1, 2)

    def _buckets(self, distances: Tensor, mask: Mask) -> Tensor:
        return buckets(distances, len(self.weight), self.farthest, both_ways=not mask.causal)


def _one_row(mask: Mask) -> Mask:
    """A mask with the distances of all rows in one, if they are packed: each row starts with its
    first token. The others have their own distances.
    """
    is_packed = isinstance(mask.packing, Packing) and mask.queries is None
    if is_packed and mask.real is mask.packing.attend:
        return Mask()
    return mask


def _of_middle(offsets: RelativeOffsets, tokens: int, *, causal: bool) -> Tensor:
    """(H, T) those of the middle query of so many tokens."""
    bias = offsets(Mask(causal=causal), tokens, offsets.weight.device, None)
    dense = bias if isinstance(bias, Tensor) else bias.dense(tokens, tokens)
    return dense[0, :, tokens // 2]


class RelativeBucketsPart(ScoresPart):
    """A learned bias per bucket of distances."""

    key = "positions"
    value = "relative"
    keys = "learned_positions relative_buckets relative_distance"
    has_sizes = True
    is_limited = False
    has_offsets = learns_offsets = True
    is_packed = True

    def new_offsets(self, config: CoreConfig) -> nn.Module:
        return RelativeOffsets(config)

    def problems(self, config: CoreConfig) -> Problems:
        # An encoder splits the buckets between both directions; half of a direction's buckets are
        # for exact distances.
        fewest = config.relative_buckets // (4 if config.encoder_layers else 2)
        most = config.relative_buckets // (2 if config.decoder_layers else 4)
        if fewest < 1 or config.relative_distance <= most:
            yield (
                f"relative_distance {config.relative_distance} is too small for "
                f"{config.relative_buckets} relative_buckets: use at least four buckets, and a "
                "distance of more than half as many"
            )

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        formula = times(2 if config.summary_block else 1, "b·H")
        yield FormulaRow(f"{side} relative offsets", formula, {"b": config.relative_buckets})

    def phrase(self, config: CoreConfig) -> str:
        return "relative position bias"

    def figures(
        self, config: CoreConfig, stacks: Mapping[str, Stack], tokens: int
    ) -> dict[str, Any]:
        """buckets (N,) of distances; offsets (H, T): those of the middle query of each stack."""
        distances = torch.arange(-SHOWN, SHOWN + 1)
        bucket = partial(buckets, distances, config.relative_buckets, config.relative_distance)
        found = {"both ways": bucket(both_ways=True), "causal": bucket(both_ways=False)}
        offsets = {
            f"{side}.offsets": _of_middle(stack.offsets, tokens, causal=side == "decoder")
            for side, stack in stacks.items()
            if isinstance(stack.offsets, RelativeOffsets)
        }
        return {"buckets": found, "offsets": offsets}


PARTS = (RelativeBucketsPart(),)
