"""Attention to mixtures of keys: softmax(Q (E K)ᵀ / √D) F V      (Wang et al. 2020, equation 7)

E and F (r, S) mix the keys and the values of all tokens into r, so the cost grows with the length
of a text and not with its square. Shapes: B batch, T queries, S keys, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask, RealFirst
from trifold.nn.parts import UnscoredPart
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict


class LowRankAttention(Attention):
    """Self-attention of an encoder to r mixtures of all keys. `k_mix` and `v_mix` (r, positions)
    are E and F.
    """

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.k_mix = nn.Parameter(torch.empty(config.rank, config.max_positions))
        self.v_mix = nn.Parameter(torch.empty(config.rank, config.max_positions))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`. Padding is left out of the mixtures, which count real tokens."""
        assert inputs.mask.has_only(), "mixtures read every real key"
        if (keys := inputs.mask.keys) is not None:
            order = RealFirst(keys).index[:, None, :, None]
            k, v = ((x * keys[:, None, :, None]).gather(2, order.expand(x.shape)) for x in (k, v))
        k, v = (
            mix[:, : x.shape[2]].to(x.dtype) @ x for mix, x in ((self.k_mix, k), (self.v_mix, v))
        )
        return super().weigh(q, k, v, AttentionInputs(Mask()))


class LowRankPart(UnscoredPart):
    """Attention to mixtures of keys."""

    value = "low-rank"
    keys = "rank"
    excludes = "score_soft_cap attention_sinks attention_dropout"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return LowRankAttention(config, layer)

    def problems(self, config: CoreConfig) -> Problems:
        if config.shape != "encoder":
            choice = self.label(config)
            text = f"{choice} mixes all tokens and needs shape: encoder, not {config.shape}"
            yield Conflict(text, defaults(config, self.key))
        yield from super().problems(config)

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), f"2·{config.rank}·P"]

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """Mixtures of keys and values, and attention to them."""
        heads = config.kv_heads + config.n_heads
        widths = config.head_width + config.value_width
        return config.n_layers * config.rank * widths * heads

    def recorded_keys(self, config: CoreConfig, keys: int) -> int:
        return config.rank

    def phrase(self, config: CoreConfig) -> str:
        return "attention to mixtures of keys"


PARTS = (LowRankPart(),)
