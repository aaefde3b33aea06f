"""Summaries of blocks of tokens, as further keys of an encoder with a window
                                (Guo et al. 2022, "LongT5", section 3.2, transient global attention)

Shapes: B batch, T tokens, G blocks, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from trifold.nn import formulas
from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, MaskPart, Rule, at_pairs
from trifold.nn.norms import new_norm
from trifold.nn.parts import AttentionPart, RulePart, ScoresPart, part_of
from trifold.nn.problems import Problems, defaults, excluded
from trifold.settings import Conflict


@dataclass(frozen=True)
class Summaries(Rule):
    """The last keys are summaries of blocks of real tokens, which all queries attend to. The tokens
    after the last whole block belong to it.

    blocks: (B or 1, T + G) the block of each of the T `tokens`, -1 for none; then the numbers of
        the G blocks.
    """

    blockwise = "near"

    blocks: Tensor
    tokens: int

    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return "summaries of blocks of tokens"

    @property
    def count(self) -> int:
        """G."""
        return self.blocks.shape[1] - self.tokens

    def allowed(self, part: MaskPart) -> None:
        return None

    def lifts(self, part: MaskPart) -> Tensor:
        return part.key_numbers >= self.tokens

    def own_distances(self, q: slice | Tensor, k: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Distances of blocks."""
        own, others = at_pairs(self.blocks, q, k)
        numbers = torch.arange(self.blocks.shape[1], device=self.blocks.device)[None]
        return at_pairs(numbers, q, k)[1] >= self.tokens, others - own

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        index = torch.arange(self.tokens, keys, device=self.blocks.device)[None, None]
        return index, torch.ones_like(index, dtype=torch.bool)

    def sums(self, x: Tensor) -> Tensor:
        """The sum of the tokens of each block: x (B, T, E) -> (B, G, E)."""
        index = self.blocks[:, : self.tokens, None].expand(*x.shape)
        # The last one is of tokens without a block.
        sums = x.new_zeros(len(x), self.count + 1, x.shape[2])
        return sums.scatter_add(1, index % (self.count + 1), x)[:, : self.count]


def with_summaries(mask: Mask, size: int, queries: int, device: torch.device) -> Mask:
    """The mask of self-attention with a summary of each block of `size` real tokens as further
    keys.
    """
    positions = mask.positions(queries, device)
    real = mask.real_keys(positions.shape[1], device)
    counts = real.sum(1, keepdim=True) // size
    numbers = torch.arange(int(counts.max()), device=device)[None]
    blocks = (positions // size).minimum(counts - 1).where(real, -1)
    summaries = Summaries(torch.cat([blocks, numbers.expand(len(blocks), -1)], 1), queries)
    keys = torch.cat([real, numbers < counts], 1)
    rules = [rule.extended(summaries.count) for rule in mask.rules]
    return replace(mask, keys=keys, rules=(*rules, summaries))


class SummaryAttention(Attention):
    """Self-attention of an encoder with a window, in which all queries also attend to a summary of
    each block of tokens: the normalized sum of its inputs (Guo et al. 2022, "LongT5", section 3.2,
    transient global attention).
    """

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.summary_norm = new_norm(config)

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `Attention.attend`. The mask and the bias have the summaries after the tokens."""
        mask = inputs.mask
        summaries = inputs.mask.rule(Summaries)
        assert summaries is not None, "the stack adds summaries to the mask"
        sums = summaries.sums(mask.grid(x))
        q, k, v = self.projections(x, mask)
        more = self.memory_keys(self.summary_norm(sums), Mask())
        k, v = (torch.cat(both, 2) for both in zip((k, v), more, strict=True))
        return self.attend_heads(q, k, v, inputs)


class SummaryRulePart(RulePart):
    """The rule of summaries, whose keys follow the tokens."""

    key = "summary_block"
    needs: ClassVar = {"shape": ("encoder", "encoder-decoder")}
    conflicts = "attention latent global_projections"

    def of_stack(self, config: CoreConfig, mask: Mask, queries: int, device: torch.device) -> Mask:
        assert config.summary_block is not None, "see `used`"
        return with_summaries(mask, config.summary_block, queries, device)

    def problems(self, config: CoreConfig) -> Problems:
        if config.sliding_window is None:
            text = f"{self.key} needs sliding_window, the number of keys of the other tokens"
            yield Conflict(text, defaults(config, self.key))
        if config.kv_heads != config.n_heads:
            yield from excluded(config, self.key, "n_kv_heads")
        scores = part_of(ScoresPart, config)
        if not scores.knows_distances:
            text = (
                "summary_block: a summary has no position; choose other positions than "
                f"{scores.value}"
            )
            yield Conflict(text, defaults(config, "positions", self.key))

    def keys_added(self, config: CoreConfig, keys: int) -> int:
        assert config.summary_block is not None, "see `used`"
        return keys // config.summary_block

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        yield f"summaries of {config.summary_block:,} tokens"


class SummaryAttentionPart(AttentionPart):
    """The attention that computes the summaries."""

    key = "summary_block"
    ignores_orders = True
    has_vectors = False  # summaries are keys too

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return SummaryAttention(config, layer)

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), formulas.norm(config, "E")]

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """With a token's share of the keys and values of summaries."""
        assert config.summary_block is not None, "see `used`"
        each = config.d_model * self.cached_per_token(config)
        summaries = config.n_layers * each // config.summary_block
        return super().score_elements(config, side, keys, read) + summaries


PARTS = (SummaryRulePart(), SummaryAttentionPart())
