"""From hidden states to what is asked of them. Heads give logits; losses that never write them are in losses.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LanguageModelHead(nn.Module):
    """logits = h Wᵀ + b; W (V, E) may be the embedding table itself (Press & Wolf 2017)."""

    def __init__(self, weight: nn.Parameter, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (…, E) -> logits (…, V) in float32."""
        return F.linear(hidden, self.weight, self.bias).float()
