"""Many token sequences of different lengths as two arrays: all ids one after the other, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """ids (sum of lengths,) int32, starts (N + 1,) int64."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32, count=int(starts[-1]))
        return cls(ids, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def joined(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
        """The first `lengths` tokens of the chosen rows, one row after the other: (sum of lengths,)."""
        firsts = np.repeat(self.starts[rows] - np.cumsum(lengths) + lengths, lengths)
        return self.ids[firsts + np.arange(len(firsts))]

    def padded(self, rows: NDArray[np.int64], width: int, pad: int) -> Tensor:
        """The chosen rows, cut or filled with `pad` to `width`: (len(rows), width) int64."""
        lengths = np.minimum(self.lengths[rows], width)
        columns = np.arange(width)
        real = columns < lengths[:, None]
        table = np.full(real.shape, pad, dtype=np.int64)
        table[real] = self.ids[(self.starts[rows][:, None] + columns)[real]]
        return torch.from_numpy(table)
