"""Position encodings that are added to embeddings.

PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))
                                                                  (Vaswani et al. 2017, section 3.5)

"sinusoidal" interleaves sines and cosines as in the formula; "sinusoidal-halves" has all sines
before all cosines, as Marian does. "sinusoidal-tensor2tensor" has halves too, and its i-th of n
frequencies is 10000^(-i/(n-1)), so that the last is 1/10000, as in tensor2tensor and fairseq
(Vaswani et al. 2018, Ott et al. 2019). Rotary positions are in rotary.py, offsets of attention
scores in relative.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trifold.nn.config import ModelConfig


def sinusoids(positions: Tensor, width: int, kind: str = "sinusoidal") -> Tensor:
    """(N,) positions or distances -> (N, width) float32, computed in float64."""
    halves, last = kind != "sinusoidal", width // 2 - (kind == "sinusoidal-tensor2tensor")
    exponents = torch.arange(width // 2, dtype=torch.float64, device=positions.device) / max(
        last, 1
    )
    angles = positions.double()[:, None] * 10_000.0**-exponents
    both = torch.stack([angles.sin(), angles.cos()], dim=1 if halves else 2)
    return both.reshape(len(positions), width).float()


class SinusoidalPositions(nn.Module):
    """Adds fixed sinusoids, from that of `position_offset`; the table is not stored in
    checkpoints.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        positions = torch.arange(config.max_positions) + config.position_offset
        table = sinusoids(positions, config.sum_width, config.positions)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + self.table[positions]


class LearnedPositions(nn.Module):
    """Adds a learned vector per position; position 0 is row `offset`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        rows = config.max_positions + self.offset
        self.weight = nn.Parameter(torch.empty(rows, config.sum_width))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + self.weight[positions + self.offset if self.offset else positions]


class AxialPositions(nn.Module):
    """Adds [r; c], the learned vectors of the row and of the column of a position in a rectangle
    (Ho et al. 2019).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = zip(config.axial_shape or (), config.axial_widths or (), strict=True)
        self.rows, self.columns = (nn.Parameter(torch.empty(size)) for size in sizes)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        count = len(self.columns)
        return x + torch.cat([self.rows[positions // count], self.columns[positions % count]], -1)


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


POSITIONS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "sinusoidal-halves": SinusoidalPositions,
    "sinusoidal-tensor2tensor": SinusoidalPositions,
    "learned": LearnedPositions,
    "axial": AxialPositions,
}
"""The kinds with a table; all others add nothing (NoPositions)."""


def new_positions(config: ModelConfig) -> nn.Module:
    """The position encoding that the config adds to embeddings."""
    kind = POSITIONS.get("learned" if config.learned_positions else config.positions)
    return NoPositions() if kind is None else kind(config)
