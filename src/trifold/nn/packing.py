"""Rows of different lengths as one long row of tokens.

Everything but attention works on single tokens, so in training the tokens of all rows lie one after the other and
no product is spent on padding; only attention sees the (B, T) grid. The long row is filled up to a round number, so
that the products keep one shape from batch to batch: preparing a new shape costs a CPU library a millisecond each.

    flat (1, N, E)  --grid-->  (B, T, E)  attention  --flat-->  (1, N, E)

Cells of the grid beyond a row's end read the last token, which is filling then, and has no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the tokens of B rows lie in one row of N.

    cells: (B·T,) the token in each cell of the grid; N - 1 in cells beyond a row's end.
    places: (N,) the cell of each token; 0 for filling.
    starts: (B + 1,) the first token of each row, and behind the last row's end; always on the CPU.
    attend: (B, T) boolean, True at real cells; None where the grid is full.
    real: tokens that are not filling; they come first.
    """

    cells: Tensor
    places: Tensor
    starts: Tensor
    attend: Tensor | None
    shape: tuple[int, int]
    real: int

    @classmethod
    def of(cls, lengths: Tensor, *, spare: bool = True) -> Packing:
        """From the lengths (B,) of the rows. Without `spare`, rows of one length are not filled up beyond a round
        number: no cell lies beyond a row's end, so none needs a filling token to read.
        """
        real, width, rows = int(lengths.sum()), int(lengths.max()), len(lengths)
        filled = rounded(real + (spare or real < rows * width))
        inside = torch.arange(width) < lengths[:, None]
        cells = torch.full((rows * width,), filled - 1)
        places = torch.zeros(filled, dtype=torch.int64)
        places[:real] = inside.flatten().nonzero().squeeze(-1)
        cells[places[:real]] = torch.arange(real)
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        return cls(cells, places, starts, None if bool(inside.all()) else inside, (rows, width), real)

    @property
    def filled(self) -> int:
        """N, filling included."""
        return len(self.places)

    def positions(self) -> Tensor:
        """(1, N) the place of each token in its own row; 0 for filling."""
        return (self.places % self.shape[1])[None]

    def grid(self, x: Tensor) -> Tensor:
        """(1, N, E) -> (B, T, E)."""
        return _Gather.apply(x[0], self.cells, self.places, self.real).view(*self.shape, -1)  # type: ignore[no-untyped-call]

    def flat(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (1, N, E)."""
        return _Gather.apply(x.flatten(0, 1), self.places, self.cells, None)[None]  # type: ignore[no-untyped-call]

    def to(self, device: torch.device) -> Packing:
        """The same on another device."""
        attend = None if self.attend is None else self.attend.to(device)
        cells, places = self.cells.to(device), self.places.to(device)
        return Packing(cells, places, self.starts, attend, self.shape, self.real)


def rounded(tokens: int) -> int:
    """The next multiple of 64, or of 32 for a few tokens."""
    step = 64 if tokens > 512 else 32
    return -(-tokens // step) * step


class _Gather(torch.autograd.Function):
    """x[there]; because `there` and `back` undo each other, the gradient is a look-up too, not a scattered sum.

    Cells beyond a row's end take the gradient of the last filling token, which is 0; filling takes none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor, real: int | None) -> Tensor:
        ctx.save_for_backward(back)
        ctx.real = real
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        out = gradients[0].index_select(0, back)
        if ctx.real is not None:
            out[ctx.real :] = 0
        return out, None, None, None
