"""Adaptive attention span: each head learns how far back it reads
                                                     (Sukhbaatar et al. 2019, equations 3 to 6)

    a_ij = m(i − j) exp(s_ij) / Σ_q m(i − q) exp(s_iq),   m(x) = min(max((R + z − x) / R, 0), 1)

z is the span of a head, from 0 to S tokens; R is the ramp on which its weights fall to 0. A loss
adds λ/M Σ z over the M heads of a layer, so a head reads far only if that pays. Keys that no head
of a layer reads any more are not computed. The paper clamps z to its range after each update; here
z = S·σ(p − 4) with a learned p, which starts at 0. Shapes: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, MaskPart, PairBias, Rule
from trifold.nn.parts import AttentionPart, ScoresPart, part_of, used_group
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict, Settings

SHORT = 4.0  # spans begin at S·σ(−4), 2 % of the largest


class AdaptiveSpan(Settings):
    """Each head learns how far back it reads."""

    size: int = Field(gt=0, description="largest span, in tokens")
    ramp: int = Field(32, gt=0, description="tokens over which weights fall to 0 beyond the span")
    penalty: float = Field(
        2e-6, ge=0, description="causal: weight of the mean span of a layer in the loss"
    )


@dataclass(frozen=True)
class Reach(Rule):
    """A query attends to keys at a distance of less than `size` real keys: the largest span of the
    heads of a layer, and its ramp.
    """

    blockwise = "near"

    size: int

    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return f"learned spans of up to {self.size} tokens"

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(part.positions)
        return (others - own).abs() < self.size

    def reach(self, causal: bool) -> tuple[int, int]:
        return self.size - 1, 0 if causal else self.size - 1


class AdaptiveSpanAttention(Attention):
    """`span` (H,) are p."""

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        settings = _settings(config)
        self.size = settings.size
        self.ramp = settings.ramp
        self.span = nn.Parameter(torch.empty(config.n_heads))

    def spans(self) -> Tensor:
        """(H,) z, in tokens."""
        return self.size * torch.sigmoid(self.span - SHORT)

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        mask = inputs.mask
        z = self.spans()
        queries = q.shape[2]
        offsets = partial(self.offsets, mask, q)
        if torch.compiler.is_compiling() or mask.offset or self.watched:
            own = slice(mask.offset, mask.offset + queries)
            bias = offsets(own, slice(0, mask.offset + queries), z)
            return super().weigh(q, k, v, inputs._replace(bias=bias))
        limit = math.ceil(float(z.detach().max()) + self.ramp)
        if limit < queries:
            mask = mask.with_rule(Reach(limit))
        pairs = PairBias((z,), offsets)
        return super().weigh(q, k, v, inputs._replace(mask=mask, bias=pairs))

    def offsets(
        self, mask: Mask, like: Tensor, q: slice | Tensor, k: slice | Tensor, z: Tensor
    ) -> Tensor:
        """log m of some queries and keys: (B or 1, H, T, S)."""
        part = MaskPart(mask, q, k, like.device)
        own, others = part.at_pairs(part.positions)
        m = ((self.ramp + z[:, None, None] - (own - others).abs()) / self.ramp).clamp(0, 1)
        # Not the logarithm of 0, whose gradient is NaN even where the result is not used.
        found = torch.where(m > 0, m, 1).log()
        return found.masked_fill(m <= 0, float("-inf")).to(like.dtype)


def mean_spans(model: nn.Module) -> Tensor:
    """The mean span of each layer, summed over layers."""
    layers = (each for each in model.modules() if isinstance(each, AdaptiveSpanAttention))
    return torch.stack([layer.spans().mean() for layer in layers]).sum()


class AdaptiveSpanPart(AttentionPart):
    """Attention whose heads learn their spans."""

    key = "adaptive_span"
    needs: ClassVar = {"shape": ("decoder",)}
    conflicts = "attention latent sliding_window recurrence residual"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return AdaptiveSpanAttention(config, layer)

    def problems(self, config: CoreConfig) -> Problems:
        scores = part_of(ScoresPart, config)
        if scores.has_offsets:
            text = "adaptive_span has offsets of its own: choose other positions than "
            yield Conflict(text + scores.value, defaults(config, "positions", self.key))

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), "H"]

    def window(self, config: CoreConfig, layer: int) -> int | None:
        return _settings(config).size + _settings(config).ramp

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        """At most; a trained model reads fewer."""
        return min(near, _settings(config).size + _settings(config).ramp)

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        """The bias of each head, too."""
        return 3 * config.n_heads * keys

    def penalty_weight(self, config: CoreConfig) -> float:
        return _settings(config).penalty

    def penalty(self, model: nn.Module) -> AbstractContextManager[Callable[[], Tensor]]:
        return nullcontext(partial(mean_spans, model))

    def phrase(self, config: CoreConfig) -> str:
        return "learned attention spans"

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        yield f"learned spans of up to {_settings(config).size:,} tokens"


def _settings(config: CoreConfig) -> AdaptiveSpan:
    return used_group(config, "adaptive_span", AdaptiveSpan)


PARTS = (AdaptiveSpanPart(),)
