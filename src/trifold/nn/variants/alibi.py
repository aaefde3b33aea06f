"""Fixed biases of distances: s_ij − m·|i − j| with a slope m per head
                                                                    (Press et al. 2022, section 3)

Shapes: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask
from trifold.nn.parts import ScoresPart

if TYPE_CHECKING:
    from trifold.nn.stack import Stack


def slopes(heads: int) -> Tensor:
    """(H,) m_h = 2^(−8h/n) for the largest power of two n; the other heads take every second slope
    of 2n heads.
    """
    whole = 2 ** math.floor(math.log2(heads))
    powers = [2.0 ** (-8 * h / whole) for h in range(1, whole + 1)]
    powers += [2.0 ** (-4 * h / whole) for h in range(1, 2 * (heads - whole) + 1, 2)]
    return torch.tensor(powers, dtype=torch.float64, device="cpu").float()


class AlibiOffsets(nn.Module):
    """The biases −m·|i − j|; no parameters. Under a causal mask they are m·j: softmax ignores a
    constant per row, but a sink does not.

    rounded: m and m·j are bfloat16, as in models that were trained so.
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        self.scale = config.alibi_scale
        self.rounded = config.alibi_rounded
        self.has_sinks = config.attention_sinks

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Tensor:
        """-> (B or 1, H, T or 1, S)."""
        m = slopes(self.heads).to(device)[:, None, None]
        if not mask.causal or self.has_sinks:
            return -m * mask.distances(queries, device).abs()[:, None] * self.scale
        positions = mask.positions(queries, device)[:, None, None]
        if self.rounded:
            return (m.bfloat16() * positions.bfloat16()).float() * self.scale
        # Relative to the last key, so that the numbers near the query, which matter most, are
        # small.
        return m * (positions - positions[..., -1:]) * self.scale


class AlibiPart(ScoresPart):
    """Fixed biases of distances."""

    key = "positions"
    value = "alibi"
    keys = "alibi_scale alibi_rounded"
    is_limited = knows_distances = False
    has_offsets = True

    def new_offsets(self, config: CoreConfig) -> nn.Module:
        return AlibiOffsets(config)

    def phrase(self, config: CoreConfig) -> str:
        return "ALiBi"

    def figures(
        self, config: CoreConfig, stacks: Mapping[str, Stack], tokens: int
    ) -> dict[str, Any]:
        """slopes (H,); alibi (H, T): the offsets of the last query."""
        offsets = AlibiOffsets(config)(Mask(), tokens, torch.device("cpu"), None)
        return {"slopes": slopes(config.n_heads), "alibi": offsets[0, :, -1]}


PARTS = (AlibiPart(),)
