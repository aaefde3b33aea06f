"""Position encodings that are added to embeddings.

PE(p, 2i) = sin(p / 10000^(2i/d)),  PE(p, 2i+1) = cos(p / 10000^(2i/d))
                                                                  (Vaswani et al. 2017, section 3.5)

"sinusoidal" interleaves sines and cosines as in the formula; "sinusoidal-halves" has all sines
before all cosines, as Marian does. "sinusoidal-tensor2tensor" has halves too, and its i-th of n
frequencies is 10000^(-i/(n-1)), so that the last is 1/10000, as in tensor2tensor and fairseq
(Vaswani et al. 2018, Ott et al. 2019). Rotary positions are in rotary.py, offsets of attention
scores in `nn.variants`.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import CoreConfig
from trifold.nn.parts import PositionsPart
from trifold.nn.registry import set_classical


def wave_frequencies(width: int, kind: str = "sinusoidal") -> Tensor:
    """The frequencies (width/2,) of the waves in float64, from 1 down."""
    n = width // 2
    divisor = n
    if kind == "sinusoidal-tensor2tensor":
        divisor = max(n - 1, 1)
    return 10_000.0 ** -(torch.arange(n, dtype=torch.float64) / divisor)


def joined_waves(sines: Tensor, cosines: Tensor, kind: str = "sinusoidal") -> Tensor:
    """Sines and cosines (…, width/2) in the order of the kind (…, width)."""
    if kind == "sinusoidal":
        return torch.stack([sines, cosines], dim=-1).flatten(-2)
    return torch.cat([sines, cosines], dim=-1)


def sinusoids(positions: Tensor, width: int, kind: str = "sinusoidal") -> Tensor:
    """(N,) positions or distances -> (N, width) float32, computed in float64."""
    frequencies = wave_frequencies(width, kind).to(positions.device)
    angles = positions.double()[:, None] * frequencies
    return joined_waves(angles.sin(), angles.cos(), kind).float()


class SinusoidalPositions(nn.Module):
    """Adds fixed sinusoids; position 0 has that of `position_offset`. The table is not stored in
    checkpoints.
    """

    table: Tensor

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        positions = torch.arange(config.max_positions) + config.position_offset
        table = sinusoids(positions, config.sum_width, config.positions)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + _rows(self.table, positions)


class LearnedPositions(nn.Module):
    """Adds a learned vector per position; position 0 is row `offset`."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        rows = config.max_positions + self.offset
        self.weight = nn.Parameter(torch.empty(rows, config.sum_width))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        return x + _rows(self.weight, positions + self.offset)


def _rows(table: Tensor, indices: Tensor) -> Tensor:
    """Rows of a table; without a gradient by an operator that takes an eighth of the time."""
    if torch.is_grad_enabled():
        return table[indices]
    return F.embedding(indices, table)


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


POSITIONS: dict[str, Callable[[CoreConfig], nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "sinusoidal-halves": SinusoidalPositions,
    "sinusoidal-tensor2tensor": SinusoidalPositions,
    "learned": LearnedPositions,
}
"""The kinds with a table; all others add nothing (NoPositions)."""
_PHRASES = {
    "sinusoidal": "sinusoidal positions",
    "sinusoidal-halves": "sines before cosines",
    "sinusoidal-tensor2tensor": "sines before cosines, down to a frequency of 1/10000",
    "learned": "learned positions",
    "none": "no positions",
}


def _kind(config: CoreConfig) -> str:
    return "learned" if config.learned_positions else config.positions


class TablePart(PositionsPart):
    """Positions with a table, or none."""

    key = "positions"

    def new(self, config: CoreConfig) -> nn.Module:
        kind = POSITIONS.get(_kind(config))
        if kind is None:
            return NoPositions()
        return kind(config)

    def phrase(self, config: CoreConfig) -> str:
        return _PHRASES.get(_kind(config), "")

    def differences(self, config: CoreConfig) -> Iterator[str]:
        """None for the sinusoids of 2017."""
        if config.positions != "sinusoidal":
            yield from super().differences(config)


set_classical(TablePart())
