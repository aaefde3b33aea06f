"""Offsets of attention scores that depend on how far a key stands from the query.

relative  score + b[bucket(j − i)], learned, one a head, shared by all layers  (Raffel et al. 2020, section 2.1)
alibi     score − m·|i − j| with a fixed slope m a head                        (Press et al. 2022, section 3)

Those that depend on the query too are in relative.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from trifold.nn.config import ModelConfig
from trifold.nn.masks import Mask
from trifold.nn.relative import Relations, Waves


def buckets(distances: Tensor, count: int, farthest: int, *, both_ways: bool) -> Tensor:
    """j − i -> its class in [0, count): near distances have one each, farther ones share it on a logarithmic scale.

    With `both_ways` the upper half of the classes is for keys behind the query; else these are all in class 0.
    """
    behind = torch.zeros_like(distances)
    if both_ways:
        count //= 2
        behind = (distances > 0).long() * count
        apart = distances.abs()
    else:
        apart = (-distances).clamp_min(0)
    exact = count // 2
    growth = torch.log(apart.clamp_min(1).float() / exact) / math.log(farthest / exact)
    far = (exact + (growth * (count - exact)).long()).clamp_max(count - 1)
    return behind + torch.where(apart < exact, apart, far)


class RelativeOffsets(nn.Module):
    """weight (buckets, H)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.n_heads))
        self.farthest = config.relative_distance

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None = None
    ) -> Tensor:
        """-> (B or 1, H, T, S), S being all keys that the mask speaks of."""
        distances = mask.distances(queries, device)
        classes = buckets(distances, len(self.weight), self.farthest, both_ways=not mask.causal)
        return self.weight[classes].permute(0, 3, 1, 2)


def slopes(heads: int) -> Tensor:
    """(H,) m_h = 2^(−8h/n) for n heads, a power of two; beyond it, every other slope of twice as many."""
    whole = 2 ** math.floor(math.log2(heads))
    powers = [2.0 ** (-8 * h / whole) for h in range(1, whole + 1)]
    powers += [2.0 ** (-4 * h / whole) for h in range(1, 2 * (heads - whole) + 1, 2)]
    return torch.tensor(powers, dtype=torch.float64, device="cpu").float()


class AlibiOffsets(nn.Module):
    """Without parameters. Under a causal mask m·j does for −m·(i − j): a softmax does not see what all of a row have.

    `rounded`: models trained in bfloat16 have met m and m·j as bfloat16 has them, and no others.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.scale, self.rounded = config.n_heads, config.alibi_scale, config.alibi_rounded

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None = None
    ) -> Tensor:
        """-> (B or 1, H, T or 1, S), S being all keys that the mask speaks of."""
        m = slopes(self.heads).to(device)[:, None, None]
        if not mask.causal:
            return -m * mask.distances(queries, device).abs()[:, None] * self.scale
        places = mask.places(queries, device)[:, None, None]
        if self.rounded:
            offsets = (m.bfloat16() * places.bfloat16()).float()
        else:
            offsets = m * (places - places[..., -1:])  # small numbers where it matters, near the query
        return offsets * self.scale


Offsets: TypeAlias = Tensor | Relations  # as they stand, or what each layer makes its own of

OFFSETS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "relative": RelativeOffsets,
    "relative-sinusoidal": Waves,
    "alibi": AlibiOffsets,
}
