"""Tokens of an encoder that attend to all, and that all attend to (Beltagy et al. 2020,
"Longformer", section 3.1). Their queries, and the keys and values that they read, may have
projections of their own.

Shapes: B batch, T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs, merge_heads
from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Inputs
from trifold.nn.layers import Linear
from trifold.nn.masks import Mask, MaskPart, Rule, columns
from trifold.nn.parts import EXAMPLE_TOKENS, AttentionPart, RulePart
from trifold.nn.problems import Problems, defaults, excluded
from trifold.settings import Conflict


@dataclass(frozen=True)
class GlobalTokens(Rule):
    """tokens: (B, N) boolean, the tokens that attend to all keys and that all queries attend to,
    whatever windows, segments and blocks say.
    """

    blockwise = "near"

    tokens: Tensor

    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return "global tokens"

    def allowed(self, part: MaskPart) -> None:
        return None

    def lifts(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(self.tokens)
        return others | own

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor]:
        index, valid = self._columns
        return index[:, None], valid[:, None]

    def reads_all(self, queries: slice, device: torch.device) -> Tensor:
        return self.tokens[:, queries]

    def extended(self, keys: int) -> GlobalTokens:
        return replace(self, tokens=F.pad(self.tokens, (0, keys)))

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        return columns(self.tokens)


class GlobalAttention(Attention):
    """Self-attention of an encoder with a window, in which the queries of global tokens, and the
    keys and values that they read, have projections of their own (Beltagy et al. 2020,
    "Longformer", section 3.1).

    Hook points show the pattern of the other tokens.
    """

    formula = "Attention; of global tokens with their own W_q, W_k and W_v"

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        size = config.n_heads * self.head_width
        bias = config.attention_bias
        self.global_q_proj, self.global_k_proj, self.global_v_proj = (
            Linear(config.d_model, size, bias=bias) for _ in range(3)
        )

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `Attention.attend`."""
        mask = inputs.mask
        out = super().attend(x, memory, inputs)
        rule = mask.rule(GlobalTokens)
        if rule is None or not bool(rule.tokens.any()):
            return out
        grid = mask.grid(x)
        out = mask.grid(out)
        # The global tokens: their rows and places, and which of the global ones of its row each is.
        rows, places = rule.tokens.expand(len(grid), -1).nonzero(as_tuple=True)
        numbers = (rule.tokens.cumsum(1) - 1).expand(len(grid), -1)[rows, places]
        empty = grid.new_zeros(len(grid), int(rule.tokens.sum(1).max()), grid.shape[2])
        states = empty.index_put((rows, numbers), grid[rows, places])
        q = self.global_q_proj(states) * self.query_scale
        q, k, v = map(self.split, (q, self.global_k_proj(grid), self.global_v_proj(grid)))
        found = merge_heads(ops.attend(q, k, v, Mask(mask.keys), drop=self.drop))
        out = out.index_put((rows, places), found[rows, numbers])
        return mask.flat(out)


def find_globals(kind: str, inputs: Inputs, eos_id: int) -> Tensor:
    """(B, T) the global tokens of that kind (`CoreConfig.global_tokens`); of packed rows on the
    grid.
    """
    tokens = inputs.grid().tokens
    real = inputs.real
    if real is None:
        real = torch.ones_like(tokens, dtype=torch.bool)
    if kind == "first":
        return real & (real.cumsum(1) == 1)
    is_end = (tokens == eos_id) & real
    ends = is_end.cumsum(1)
    if kind == "question":
        return real & (ends == 0)
    return real & (ends - is_end.long() >= 2)  # two ends before the token itself


PHRASES = {
    "first": "global first token",
    "question": "global tokens before the first end-of-sentence token",
    "answer": "global tokens after the second end-of-sentence token",
}


class GlobalTokensPart(RulePart):
    """The rule of global tokens, which a config or the inputs choose."""

    key = "global_tokens"
    needs: ClassVar = {"shape": ("encoder", "encoder-decoder")}
    ignores_orders = True

    def used(self, config: CoreConfig) -> bool:
        return config.global_tokens != "none"

    def of_inputs(self, config: CoreConfig, inputs: Inputs) -> Rule | None:
        if inputs.globals is not None:
            return GlobalTokens(inputs.globals)
        if config.global_tokens == "none":
            return None
        return GlobalTokens(find_globals(config.global_tokens, inputs, config.eos_id))

    def problems(self, config: CoreConfig) -> Problems:
        if config.sliding_window is None:
            text = f"{self.key} needs sliding_window, the number of keys of the other tokens"
            yield Conflict(text, defaults(config, self.key))

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        if side == "encoder":
            yield PHRASES[config.global_tokens]

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        """The masks of encoders whose rules it lifts."""
        first = GlobalTokens((torch.arange(EXAMPLE_TOKENS) == 0)[None])
        return {
            f"{name}, the first token global": mask.with_rule(first)
            for name, mask in given.items()
            if not mask.causal and any(rule.can_be_lifted for rule in mask.rules)
        }


class GlobalProjectionsPart(AttentionPart):
    """Own projections of global tokens."""

    key = "global_projections"
    needs: ClassVar = {"shape": ("encoder", "encoder-decoder")}
    conflicts = "attention latent"
    excludes = "qk_norm score_soft_cap attention_sinks d_value"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return GlobalAttention(config, layer)

    def problems(self, config: CoreConfig) -> Problems:
        if config.sliding_window is None:
            text = f"{self.key} needs sliding_window, the number of keys of the other tokens"
            yield Conflict(text, defaults(config, self.key))
        if config.kv_heads != config.n_heads:
            yield from excluded(config, self.key, "n_kv_heads")
        if not config.positions.startswith(("learned", "sinusoidal", "none")):
            text = (
                "global_projections excludes offsets of scores: choose other positions than "
                f"{config.positions}"
            )
            yield Conflict(text, defaults(config, "positions", self.key))

    def terms(self, config: CoreConfig) -> list[str]:
        biases = " + 3·H·D" if config.attention_bias else ""
        return [*super().terms(config), f"3·E·H·D{biases}"]

    def matrices(self, config: CoreConfig) -> int:
        """With those of keys and values that global tokens read."""
        own = 2 * config.d_model * config.head_width * config.n_heads
        return super().matrices(config) + own

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        yield "own projections of global tokens"


PARTS = (GlobalTokensPart(), GlobalProjectionsPart())
