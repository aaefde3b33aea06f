"""Where a token stands.

PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))    (Vaswani et al. 2017, section 3.5)

"sinusoidal" interleaves sines and cosines as the formula has it; "sinusoidal-halves" puts all sines before all
cosines, as tensor2tensor and Marian do. The two differ by a permutation of the width. What turns queries and keys
instead is in rotary.py, what is added to scores in offsets.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trifold.nn.config import ModelConfig


def sinusoidal_table(positions: int, width: int, *, halves: bool = False) -> Tensor:
    """(positions, width) float32, computed in float64."""
    return waves(torch.arange(positions), width, halves=halves)


def waves(steps: Tensor, width: int, *, halves: bool) -> Tensor:
    """(N,) places, or distances, -> (N, width) float32, computed in float64."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=steps.device) / width
    angles = steps.double()[:, None] * 10_000.0**-exponents
    both = torch.stack([angles.sin(), angles.cos()], dim=1 if halves else 2)
    return both.reshape(len(steps), width).float()


class SinusoidalPositions(nn.Module):
    """Adds the fixed waves; the table is computed, not stored in checkpoints."""

    table: Tensor

    def __init__(self, config: ModelConfig, *, halves: bool = False) -> None:
        super().__init__()
        table = sinusoidal_table(config.max_positions, config.embedding_width, halves=halves)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + self.table[positions]


class LearnedPositions(nn.Module):
    """Adds one learned vector a position; knows nothing beyond max_positions. Position 0 is row `offset`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        rows = config.max_positions + self.offset
        self.weight = nn.Parameter(torch.empty(rows, config.embedding_width))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + self.weight[positions + self.offset if self.offset else positions]


class NoPositions(nn.Module):
    """Adds nothing: leaves order to the attention, to its causal mask, or to nobody."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


POSITIONS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "sinusoidal-halves": lambda config: SinusoidalPositions(config, halves=True),
    "learned": LearnedPositions,
    "rotary": lambda config: NoPositions(),
    "relative": lambda config: NoPositions(),
    "relative-sinusoidal": lambda config: NoPositions(),
    "alibi": lambda config: NoPositions(),
    "none": lambda config: NoPositions(),
}
