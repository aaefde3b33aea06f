"""Features of texts that a model reads beside their tokens: counts of hashed n-grams, or of the
words of two texts.

Training, evaluation and prediction call `text_features`, so that they read the same features.
"""

from collections.abc import Sequence

import torch

from trifold.linear.hashed import SparseRows, hashed_ngrams
from trifold.linear.shared_words import counted_pairs
from trifold.nn import ModelConfig
from trifold.nn.inputs import RowFeatures
from trifold.nn.parts import LogitsPart, part_of


def text_features(
    config: ModelConfig, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> RowFeatures | None:
    """The features of texts, or of pairs of texts, for the linear path of a model; None if it reads
    none of the text.
    """
    columns = part_of(LogitsPart, config).columns(config)
    if columns.compared:
        if pairs is None:
            return None
        has_order = columns.order_numbers > 0
        return as_features(counted_pairs(texts, pairs, columns.compared, has_order=has_order))
    if not (columns.words or columns.characters):
        return None
    return as_features(hashed_ngrams(texts, columns.words, columns.characters))


def as_features(rows: SparseRows) -> RowFeatures:
    """Counted rows as the model reads them."""
    return RowFeatures(*map(torch.from_numpy, rows))
