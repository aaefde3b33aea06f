"""Attention and feed-forward network beside each other         (Wang & Komatsuzaki 2021, GPT-J)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor, nn

from trifold.nn.cache import LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.explain import Steps
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout
from trifold.nn.norms import new_norm
from trifold.nn.parts import AttentionPart, BlockPart, FeedForwardPart, no_cross_attention, part_of
from trifold.nn.problems import Problems
from trifold.nn.walk import LayerInputs


class ParallelBlock(nn.Module):
    """x + drop(attention(norm x) + feed-forward(norm x)), with one shared norm or two (Wang &
    Komatsuzaki 2021).

    Parameters are named as in a sequential pre-norm block; a shared norm is `self_attention.enter`.
    """

    wiring = "parallel"

    def __init__(self, config: CoreConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__()
        assert memory_width is None, "a parallel block has no cross-attention"
        self.two_norms = config.residual == "parallel-two-norms"
        norm = new_norm(config) if self.two_norms else nn.Identity()
        parts = {
            "enter": new_norm(config),
            "sublayer": part_of(AttentionPart, config).new(config, layer),
            "output": HookPoint(),
        }
        self.self_attention = nn.ModuleDict(parts)
        parts = {
            "enter": norm,
            "sublayer": part_of(FeedForwardPart, config).new(config, layer),
            "output": HookPoint(),
        }
        self.feed_forward = nn.ModuleDict(parts)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        normed = self.self_attention["enter"](x)
        attended = self.self_attention["sublayer"](normed, **inputs.self_attention(cache))
        inner = self.feed_forward["sublayer"](
            self.feed_forward["enter"](x) if self.two_norms else normed
        )
        return self.drop.add(
            x, self.self_attention["output"](attended) + self.feed_forward["output"](inner)
        )

    def explain(self, steps: Steps, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """See `nn.explain`."""
        attention = f"{name}.self_attention"
        feed_forward = f"{name}.feed_forward"
        y = steps.norm("norm", self.self_attention["enter"], x, f"{attention}.enter")
        a = steps.attention(self.self_attention["sublayer"], y, inputs, attention)
        steps.equals(f"{attention}.output")
        z = x if self.two_norms else y
        z = steps.norm("norm", self.feed_forward["enter"], z, f"{feed_forward}.enter")
        f = steps.feed_forward(self.feed_forward["sublayer"], z, inputs, feed_forward)
        steps.equals(f"{feed_forward}.output")
        state = name.replace("blocks", "states")
        return steps.add("residual", "x + (a + f)", x + (a + f), state, x=x, a=a, f=f)


class ParallelPart(BlockPart):
    """Parallel sub-layers with one norm."""

    value = "parallel"
    needs: ClassVar = {"norm_placement": ("pre",)}
    excludes = "first_norm residual_scale"

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        return ParallelBlock(config, layer, memory_width=memory_width)

    def problems(self, config: CoreConfig) -> Problems:
        yield from no_cross_attention(config, self)

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 1

    def saved(self, config: CoreConfig, attentions: int, norm: int, mask: int) -> int:
        return self.norms(config, crosses=False) + norm + mask

    def phrase(self, config: CoreConfig) -> str:
        return "parallel attention and feed-forward after one norm"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        yield "every block:  x ← x + dropout(attention(n) + feed-forward(n)), n = norm(x)"


class TwoNormsPart(ParallelPart):
    """Parallel sub-layers with a norm each."""

    value = "parallel-two-norms"

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 2

    def phrase(self, config: CoreConfig) -> str:
        return "parallel attention and feed-forward, each after its own norm"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        yield "every block:  x ← x + dropout(attention(norm(x)) + feed-forward(norm'(x)))"


PARTS = (ParallelPart(), TwoNormsPart())
