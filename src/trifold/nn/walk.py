"""How the layers of a stack run: one after the other.

Training may have another walk (`parts.WalkPart`). With a cache, without gradients, and while hook
points are watched, layers always run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from trifold.nn import ops
from trifold.nn.attention import Memo, ScoreBias
from trifold.nn.cache import Cache, LayerCache
from trifold.nn.inputs import Request
from trifold.nn.masks import Mask
from trifold.nn.parts import WalkPart
from trifold.nn.registry import set_classical
from trifold.nn.rotary import Rotation


class StackInputs(NamedTuple):
    """What the layers of a stack read besides x: masks, a memory, and positions in scores: a bias
    for all layers, and the rotation of each.
    """

    mask: Mask
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    bias: ScoreBias | None = None
    rotations: Sequence[Rotation | None] = ()


class LayerInputs(NamedTuple):
    """What one layer reads besides x. memo: of a layer that is computed again."""

    mask: Mask
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    bias: ScoreBias | None = None
    rotary: Rotation | None = None
    memo: Memo | None = None

    def self_attention(self, cache: LayerCache | None = None) -> dict[str, Any]:
        """The arguments of the layer's self-attention besides x (`AttentionInputs`)."""
        return {
            "mask": self.mask,
            "bias": self.bias,
            "rotary": self.rotary,
            "cache": cache,
            "memo": self.memo,
        }


def in_order(stack: Any, x: Tensor, request: Request, cache: Cache | None = None) -> Tensor:
    """One layer after the other: x (B, T, E) -> (B, T, E)."""
    inputs = stack.inputs(x, request)
    if cache is None:
        return ops.layers(stack, x, inputs)
    return ops.decoding_step(stack, x, inputs, cache)


class InOrder(WalkPart):
    """The classical walk."""

    def run(self, stack: Any, x: Tensor, request: Request) -> Tensor:
        return in_order(stack, x, request)


set_classical(InOrder())
