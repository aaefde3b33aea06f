"""TF-IDF: counts of n-grams, weighted by how few texts have them, as vectors of length 1.

Equal to scikit-learn's `TfidfVectorizer` with its defaults: idf = ln((1 + N) / (1 + df)) + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.linear.matrix import FeatureMatrix, sparse
from trifold.linear.ngrams import Analyzer, Ids, Terms


@dataclass(frozen=True)
class Tfidf:
    """The n-grams of a set of texts, and the idf of each. fewest: texts that have each n-gram."""

    analyzer: Analyzer
    names: list[str]
    idf: NDArray[np.float64]
    fewest: int = 1

    @classmethod
    def fit(
        cls, analyzer: Analyzer, texts: Sequence[Any], most: int | None = None
    ) -> tuple["Tfidf", FeatureMatrix]:
        """The n-grams of these texts, and the features of the texts.

        most: the number of n-grams; those in the fewest texts are left out until it is reached.
        """
        terms = analyzer(texts)
        rows, ids, counts = _counted(terms)
        frequencies = np.bincount(ids, minlength=len(terms.names))
        fewest = 1
        while most is not None and (frequencies >= fewest).sum() > most:
            fewest += 1
        kept = np.flatnonzero(frequencies >= fewest)
        names = terms.names
        if fewest > 1:
            names = [names[number] for number in kept.tolist()]
        idf = np.log((1 + len(texts)) / (1 + frequencies[kept])) + 1
        fitted = cls(analyzer, names, idf, fewest)
        columns = np.full(len(terms.names), -1)
        columns[kept] = np.arange(len(kept))
        return fitted, fitted._weighted(rows, columns[ids], counts, len(texts))

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    def transform(self, texts: Sequence[Any]) -> FeatureMatrix:
        """The features (N, F) of other texts; n-grams that are not known are left out."""
        terms = self.analyzer(texts)
        rows, ids, counts = _counted(terms)
        columns = np.array([self._columns.get(name, -1) for name in terms.names], np.int64)
        return self._weighted(rows, columns[ids], counts, len(texts))

    def _weighted(self, rows: Ids, columns: Ids, counts: Ids, texts: int) -> FeatureMatrix:
        known = columns >= 0
        rows = rows[known]
        columns = columns[known]
        values = counts[known] * self.idf[columns]
        norms = np.sqrt(np.bincount(rows, values**2, minlength=texts))
        return sparse(rows, columns, values / norms[rows], (texts, len(self.names)))


def _counted(terms: Terms) -> tuple[Ids, Ids, Ids]:
    """The distinct (row, n-gram), sorted by rows, and how often each occurs."""
    width = max(len(terms.names), 1)
    keys, counts = np.unique(terms.rows * width + terms.ids, return_counts=True)
    rows, ids = np.divmod(keys, width)
    return rows, ids, counts
