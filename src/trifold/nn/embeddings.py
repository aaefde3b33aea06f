"""From ids to vectors: x_t = E[w_t]·√d_model + position, then dropout (Vaswani et al. 2017, sections 3.4 and 5.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import ModelConfig
from trifold.nn.layers import Dropout
from trifold.nn.packing import Packing
from trifold.nn.positions import POSITIONS


@dataclass
class Inputs:
    """What goes into a stack.

    tokens: (B, T) ids.
    attend: (B, T) boolean, True at real positions; None where there is no padding.
    positions: (B or 1, T); counted from 0 unless given.
    packing: where `tokens` is one row (1, N) that holds many; it then brings mask and positions with it.
    """

    tokens: Tensor
    attend: Tensor | None = None
    positions: Tensor | None = None
    packing: Packing | None = None

    def to(self, device: torch.device) -> Inputs:
        """The same on another device."""

        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        packing = None if self.packing is None else self.packing.to(device)
        return Inputs(
            self.tokens.to(device, non_blocking=True), moved(self.attend), moved(self.positions), packing
        )


class _Lookup(torch.autograd.Function):
    """Rows of a table. The backward sums in fp32: a frequent token's gradient would drown in bf16 rounding."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = weight.shape[0], weight.dtype
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1]).float()
        total = rows.new_zeros(ctx.rows, rows.shape[-1]).index_add_(0, tokens.reshape(-1), rows)
        return total.to(ctx.dtype), None


class TokenEmbedding(nn.Module):
    """weight (V, E). One-hot rows times the table are a look-up."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, E)."""
        return _Lookup.apply(self.weight, tokens)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


class Embeddings(nn.Module):
    """Tokens, scaled, plus positions, with dropout on the sum. The token table may be shared between stacks."""

    def __init__(self, config: ModelConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = POSITIONS[config.positions](config)
        self.drop = Dropout(config.dropout)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.max_positions = config.max_positions

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, T, E); `start` is the position of the first token (the length of a cache).

        Raises ValueError where a position lies beyond max_positions.
        """
        positions = inputs.positions
        if inputs.packing is not None:
            positions, longest = inputs.packing.positions(), inputs.packing.shape[1]
        elif positions is None:
            longest = start + inputs.tokens.shape[1]
            positions = torch.arange(start, longest, device=inputs.tokens.device)[None]
        else:
            longest = int(positions.max()) + 1
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens do not fit max_positions = {self.max_positions}: "
                "shorten the text or use a model with more positions"
            )
        x = self.tokens(inputs.tokens)
        return self.drop(self.positions(x * self.scale if self.scale != 1.0 else x, positions))
