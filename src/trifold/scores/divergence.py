"""How far two models are apart: divergence of their next-token distributions, cosines of vectors.

The Kullback-Leibler divergence of a model from a reference, at one token, is

    KL = Σ_v q_v · (log q_v − log p_v)        q: the reference, p: the model, v: the vocabulary

in nats. It is 0 where both predict the same, and never negative.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trifold.errors import DataError

Z = 1.959963984540054  # of a 95 % interval of a normal distribution
HIGH = 0.99  # the quantile of the divergences that is reported
MAX_LOSS = 700.0  # of which the exponential is finite


class DivergenceScore:
    """KL divergence, equal predictions and perplexities, over tokens.

    A token takes 25 bytes. The interval of the mean is that of independent tokens, as llama.cpp's.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(
        self, divergence: ArrayLike, equal: ArrayLike, ours: ArrayLike, theirs: ArrayLike
    ) -> None:
        """Add tokens. divergence (N,): KL in nats. equal (N,): whether both models have the same
        most probable token. ours, theirs (N,): −log P(label) of the model and of the reference.
        """
        numbers = [np.asarray(column, np.float64) for column in (divergence, ours, theirs)]
        columns = (*numbers, np.asarray(equal, np.bool_))
        if len({column.shape for column in columns}) != 1:
            shapes = ", ".join(str(column.shape) for column in columns)
            raise DataError(f"columns of tokens have the shapes {shapes}; they must be equal")
        self._parts.append(columns)

    def values(self) -> dict[str, float]:
        """The scores by name. `kl`: mean, from `kl_low` to `kl_high` in 95 % of samples; `kl_p99`:
        the value that 1 % of the tokens exceed; `equal_top`: percent of tokens; perplexities.
        """
        if not self._parts:
            return {}
        columns = zip(*self._parts, strict=True)
        divergence, ours, theirs, equal = (np.concatenate(column) for column in columns)
        mean = float(divergence.mean())
        error = 0.0
        if len(divergence) > 1:
            error = Z * float(divergence.std(ddof=1)) / math.sqrt(len(divergence))
        return {
            "tokens": len(divergence),
            "kl": mean,
            "kl_low": max(mean - error, 0.0),
            "kl_high": mean + error,
            "kl_p99": float(np.quantile(divergence, HIGH)),
            "equal_top": 100 * float(equal.mean()),
            "perplexity": math.exp(min(float(ours.mean()), MAX_LOSS)),
            "perplexity_against": math.exp(min(float(theirs.mean()), MAX_LOSS)),
        }


class CosineScore:
    """Cosine of the vectors that two models give to the same text: mean and minimum."""

    def __init__(self) -> None:
        self._cosines: list[NDArray[np.float64]] = []

    def add(self, ours: ArrayLike, theirs: ArrayLike) -> None:
        """Add texts: their vectors (N, E) by both models. The cosine with a vector of 0 is 0."""
        a = np.asarray(ours, np.float64)
        b = np.asarray(theirs, np.float64)
        if a.shape != b.shape:
            raise DataError(f"vectors of the shapes {a.shape} and {b.shape} have no cosine")
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        products = (a * b).sum(1)
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        self._cosines.append(cosines.clip(-1, 1))

    def values(self) -> dict[str, float]:
        """`texts`, `cosine` (mean) and `cosine_minimum`."""
        cosines = np.concatenate([np.empty(0), *self._cosines])
        if not len(cosines):
            return {}
        return {
            "texts": len(cosines),
            "cosine": float(cosines.mean()),
            "cosine_minimum": float(cosines.min()),
        }
