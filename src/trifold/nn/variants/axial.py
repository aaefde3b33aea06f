"""Axial positions: learned vectors of rows and columns (Ho et al. 2019; Kitaev et al. 2020)"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.parts import PositionsPart
from trifold.nn.problems import Problems


class AxialPositions(nn.Module):
    """Adds [r; c], the learned vectors of the row and of the column of a position in a rectangle
    (Ho et al. 2019).
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        sizes = zip(config.axial_shape or (), config.axial_widths or (), strict=True)
        self.rows, self.columns = (nn.Parameter(torch.empty(size)) for size in sizes)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, E), positions (B or 1, T) -> (B, T, E)."""
        count = len(self.columns)
        return x + torch.cat([self.rows[positions // count], self.columns[positions % count]], -1)


class AxialPart(PositionsPart):
    """Learned vectors of rows and columns of positions."""

    key = "positions"
    value = "axial"
    keys = "axial_shape axial_widths"
    has_sizes = True

    def new(self, config: CoreConfig) -> nn.Module:
        return AxialPositions(config)

    def problems(self, config: CoreConfig) -> Problems:
        shape = config.axial_shape or (0, 0)
        widths = config.axial_widths or (0, 0)
        if prod(shape) < (most := max(config.max_positions, config.max_decoder_positions or 0)):
            yield (
                f"axial positions need axial_shape, whose product is at least max_positions {most}"
            )
        if sum(widths) != (width := config.sum_width):
            yield (
                f"axial positions need axial_widths, whose sum is the width {width} of the "
                "embeddings"
            )

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        sizes = zip(config.axial_shape or (), config.axial_widths or (), strict=True)
        formula = " + ".join(f"{count}·{width}" for count, width in sizes)
        yield FormulaRow(f"{side} positions", formula)

    def phrase(self, config: CoreConfig) -> str:
        return "learned positions of rows and columns"


PARTS = (AxialPart(),)
