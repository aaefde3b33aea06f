"""Features of texts that a model reads beside their tokens: counts of hashed n-grams.

Training, evaluation and prediction call `text_features`, so that they read the same features.
"""

from collections.abc import Sequence

import torch

from trifold.linear.hashed import hashed_ngrams
from trifold.nn import ModelConfig
from trifold.nn.inputs import Features
from trifold.nn.parts import LogitsPart, part_of


def text_features(config: ModelConfig, texts: Sequence[str]) -> Features | None:
    """The features of texts for the linear path of a model; None if it reads none of the text."""
    columns = part_of(LogitsPart, config).columns(config)
    if not (columns.words or columns.characters):
        return None
    rows = hashed_ngrams(texts, columns.words, columns.characters)
    return Features(*map(torch.from_numpy, rows))
