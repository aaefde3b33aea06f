"""Additive attention: s_ij = vᵀ tanh(W q_i + U k_j) in the place of q_i·k_j / √D
                                                    (Bahdanau et al. 2015, A.1.2)

The sum of a query and a key passes a layer of tanh units, whose outputs the learned vector v
weighs. Here each head has its own v; W and U are the projections of queries and keys. There is no
scale. Both self-attention and attention to a memory are additive. Dot products compare all pairs in
one matmul; here every pair has D units, which cost time and memory (Vaswani et al. 2017, section
3.2.1).

Shapes: B batch, T queries, S keys, H heads, D head size, Y value size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs
from trifold.nn.config import CoreConfig
from trifold.nn.parts import AttentionPart, ScoresPart, part_of
from trifold.nn.problems import Problems, defaults
from trifold.settings import Conflict

PAIR_ELEMENTS = 2**22  # of units that are computed at once


class AdditiveAttention(Attention):
    """`score_vectors` (H, D) are v."""

    formula = "softmax(vᵀ tanh(q + k)) V, q = W_q x, k = W_k x"

    def __init__(
        self, config: CoreConfig, layer: int = 0, *, memory_width: int | None = None
    ) -> None:
        super().__init__(config, layer, memory_width=memory_width)
        self.score_vectors = nn.Parameter(torch.empty(config.n_heads, config.head_width))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        rows = q.shape[0]
        bias = inputs.bias
        assert bias is None or isinstance(bias, Tensor), "see `AdditivePart.problems`"
        q, k, v = ops.share_keys(q, k, v)
        out = ops.weigh_values(
            self.scores_of(q, k),
            v,
            inputs.mask,
            bias=bias,
            drop=self.drop,
            hooks=self if self.watched else None,
        )
        return ops.unshare_keys(out, rows)

    def scores_of(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, T, D) and k (B, H, S, D) -> scores (B, H, T, S), some queries at a time."""
        vectors = self.score_vectors.to(q.dtype)[:, :, None]
        size = max(1, PAIR_ELEMENTS // max(1, k.numel()))
        scores = []
        for part in q.split(size, 2):
            units = torch.tanh(part[:, :, :, None] + k[:, :, None]).flatten(2, 3)
            scores.append((units @ vectors).unflatten(2, (-1, k.shape[2]))[..., 0])
        return torch.cat(scores, 2)


class AdditivePart(AttentionPart):
    """Attention whose scores a layer of tanh units computes."""

    value = "additive"
    crosses = True
    conflicts = (
        "sliding_window sparse_blocks recurrence summary_block global_projections latent "
        "query_stream"
    )
    excludes = "score_soft_cap attention_sinks attention_scale attention_scale_by_layer"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return AdditiveAttention(config, layer)

    def new_cross(self, config: CoreConfig, layer: int, memory_width: int) -> nn.Module:
        return AdditiveAttention(config, layer, memory_width=memory_width)

    def problems(self, config: CoreConfig) -> Problems:
        """Rotations and vectors of distances belong to products of queries and keys."""
        scores = part_of(ScoresPart, config)
        multiplies = scores.new_rotary(config) is not None or scores.terms(config)
        if multiplies or config.positions == "relative-sinusoidal":
            choice = self.label(config)
            text = f"{choice} has no products with keys: choose other positions than {scores.value}"
            yield Conflict(text, defaults(config, "positions", self.key))

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), "H·D"]

    def cross_terms(self, config: CoreConfig, reads: str) -> list[str]:
        return [*super().cross_terms(config, reads), "H·D"]

    def saved_weights(self, config: CoreConfig, kept: float, *, is_packed: bool) -> int:
        """With the units of every pair, and the weights and scores."""
        own = config.n_heads * (config.head_width + 2) * kept
        return round(own) + super().saved_weights(config, kept, is_packed=False)

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        """Scores, weights, and units of the queries that are computed at once."""
        return config.n_heads * keys * (2 + config.head_width)

    def phrase(self, config: CoreConfig) -> str:
        return "additive attention"


PARTS = (AdditivePart(),)
