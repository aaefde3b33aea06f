"""Attention by cosine: softmax(cos(q_i, k_j) / τ) V, with a learned τ for each head
(Liu et al. 2022, "Swin Transformer V2", section 3.3)
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.attention import Attention
from trifold.nn.config import CoreConfig
from trifold.nn.masks import Mask
from trifold.nn.parts import AttentionPart


class CosineAttention(Attention):
    """`temperature` (H,) is log 1/τ."""

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.temperature = nn.Parameter(torch.empty(config.n_heads))

    def projections(self, x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D) of length √D/τ, because scores are divided by √D; keys
        (B, H', T, D) of length 1; and values.
        """
        q, k, v = super().projections(x, mask)
        scale = self.temperature.exp()[:, None, None] * math.sqrt(self.head_width)
        return F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1), v


class CosinePart(AttentionPart):
    value = "cosine"

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return CosineAttention(config, layer)

    def terms(self, config: CoreConfig) -> list[str]:
        return [*super().terms(config), "H"]


PARTS = (CosinePart(),)
