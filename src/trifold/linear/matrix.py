"""Features of rows as a matrix, sparse or dense, with its transpose for gradients."""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.linear.ngrams import Ids

SPARSE = 8  # times as long


@dataclass(frozen=True)
class FeatureMatrix:
    """Features (N, F) of N rows; both tensors are sparse (CSR) or dense, in float64 or float32."""

    matrix: Tensor
    transposed: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return rows, columns

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def size(self) -> int:
        """The number of values that are stored."""
        if self.matrix.layout == torch.sparse_csr:
            return int(self.matrix.values().numel())
        return self.matrix.numel()

    @property
    def work(self) -> int:
        """Multiplications of a product with a vector; one of a sparse matrix counts several times,
        for which it takes as long.
        """
        return self.size * (1 if self.matrix.layout == torch.strided else SPARSE)

    def times(self, weights: Tensor) -> Tensor:
        """(N, C) of weights (F, C)."""
        return self.matrix @ weights

    def gradient(self, errors: Tensor) -> Tensor:
        """(F, C) of errors (N, C)."""
        return self.transposed @ errors

    def gradient_of_squares(self, errors: Tensor) -> Tensor:
        """`gradient` with the square of each feature."""
        return self._squares @ errors

    @cached_property
    def _squares(self) -> Tensor:
        """(F, N)."""
        if self.transposed.layout == torch.strided:
            return self.transposed**2
        places = self.transposed.crow_indices(), self.transposed.col_indices()
        values = self.transposed.values() ** 2
        return _csr_tensor(*places, values, tuple(self.transposed.shape))


def dense(values: NDArray[np.floating] | Tensor) -> FeatureMatrix:
    """Features that are not sparse."""
    matrix = torch.as_tensor(values)
    return FeatureMatrix(matrix, matrix.T)


def sparse(
    rows: Ids, columns: Ids, values: NDArray[np.floating], shape: tuple[int, int]
) -> FeatureMatrix:
    """The features with the values at (row, column), sorted by rows; all others are 0."""
    by_column = np.argsort(columns, kind="stable")
    return FeatureMatrix(
        _csr(rows, columns, values, shape),
        _csr(columns[by_column], rows[by_column], values[by_column], shape[::-1]),
    )


def _csr(rows: Ids, columns: Ids, values: NDArray[np.floating], shape: tuple[int, ...]) -> Tensor:
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    first, second, third = (torch.from_numpy(array) for array in (starts, columns, values))
    return _csr_tensor(first, second, third, shape)


def _csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():  # that sparse tensors are in beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)
