"""Rows of different lengths, packed into one long row of tokens.

Everything except attention works on single tokens. In training the tokens of all rows are therefore
stored one after the other, and no product is spent on padding; only attention uses the (B, T) grid.
The length of the row is a multiple of 32 or 64, so that few shapes occur: a CPU library takes a
millisecond to prepare a new one.

    packed (1, N, E)  --grid-->  (B, T, E)  attention  --flat-->  (1, N, E)

Grid cells after the end of a row read the last token, which is then padding and has no gradient.
Rows that are not packed have the layout `Unpacked`, in which both directions are the identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Unpacked(Enum):
    """The layout of rows (B, T) that are not packed; its methods are those of `Packing`. A member
    of an enumeration, which the compiler of PyTorch can use as a constant.
    """

    UNPACKED = "unpacked"

    @property
    def attend(self) -> None:
        """None: the layout itself knows no padding; masks and inputs state it."""

    def width(self, columns: int) -> int:
        """T, of inputs (B, T)."""
        return columns

    def grid(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E)."""
        return x

    def flat(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, E)."""
        return x

    def to(self, device: torch.device, **options: bool) -> Unpacked:
        """The same; there is nothing to move."""
        return self


@dataclass(frozen=True)
class Packing:
    """Where the tokens of B rows are in one row of N.

    token_of_cell: (B·T,) the token in each cell of the grid; N - 1 after the end of a row.
    cell_of_token: (N,) the cell of each token; 0 for padding.
    starts: (B + 1,) the first token of each row, then the end of the last row; always on the CPU.
    attend: (B, T) boolean, True at real cells; None if all are.
    shape: (B, T). n_real: number of tokens without padding, which comes last.
    """

    token_of_cell: Tensor
    cell_of_token: Tensor
    starts: Tensor
    attend: Tensor | None
    shape: tuple[int, int]
    n_real: int

    @classmethod
    def of(cls, lengths: Tensor, *, always_pad: bool = True) -> Packing:
        """From the lengths (B,) of the rows. always_pad: at least one padding token, even for rows
        of equal length, which need none.
        """
        real = int(lengths.sum())
        width = int(lengths.max())
        rows = len(lengths)
        length = round_up(real + (always_pad or real < rows * width))
        inside = torch.arange(width) < lengths[:, None]
        token_of_cell = torch.full((rows * width,), length - 1)
        cell_of_token = torch.zeros(length, dtype=torch.int64)
        cell_of_token[:real] = inside.flatten().nonzero().squeeze(-1)
        token_of_cell[cell_of_token[:real]] = torch.arange(real)
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        attend = None if bool(inside.all()) else inside
        return cls(token_of_cell, cell_of_token, starts, attend, (rows, width), real)

    @property
    def length(self) -> int:
        """N, including padding."""
        return len(self.cell_of_token)

    def fill(self, values: Tensor, padding: int) -> Tensor:
        """(1, N) int64: the values (n_real,) of the tokens of all rows, then padding."""
        return F.pad(values.long(), (0, self.length - self.n_real), value=padding)[None]

    def width(self, columns: int) -> int:
        """T, of inputs (1, N)."""
        return self.shape[1]

    def positions(self) -> Tensor:
        """(1, N) the position of each token in its own row; 0 for padding."""
        return (self.cell_of_token % self.shape[1])[None]

    def rows(self) -> Tensor:
        """(N,) the row of each token; -1 for padding."""
        inside = torch.arange(self.length, device=self.cell_of_token.device) < self.n_real
        return (self.cell_of_token // self.shape[1]).where(inside, -1)

    def grid(self, x: Tensor) -> Tensor:
        """(1, N, E) -> (B, T, E)."""
        grid = _Gather.apply(x[0], self.token_of_cell, self.cell_of_token, self.n_real)  # type: ignore[no-untyped-call]
        return grid.view(*self.shape, -1)

    def flat(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (1, N, E)."""
        return _Gather.apply(x.flatten(0, 1), self.cell_of_token, self.token_of_cell, None)[None]  # type: ignore[no-untyped-call]

    def to(self, device: torch.device, **options: bool) -> Packing:
        """A copy on another device; `options` are those of `Tensor.to`."""
        moved = {name: getattr(self, name) for name in ("token_of_cell", "cell_of_token", "attend")}
        return replace(
            self, **{name: x.to(device, **options) for name, x in moved.items() if x is not None}
        )


UNPACKED = Unpacked.UNPACKED


def round_up(tokens: int) -> int:
    """The next multiple of 64, or of 32 up to 512 tokens."""
    step = 64 if tokens > 512 else 32
    return -(-tokens // step) * step


class _Gather(torch.autograd.Function):
    """x[index]. `inverse` inverts `index`, so the gradient is a look-up too, not a scattered sum.

    `flat`: cells after the end of a row take the gradient of the last padding token, which is 0.
    `grid`: the tokens from `real` on are padding and take none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor, real: int | None) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.real = real
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        out = gradients[0].index_select(0, inverse)
        if ctx.real is not None:
            out[ctx.real :] = 0
        return out, None, None, None
