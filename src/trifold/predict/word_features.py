"""What the linear path of a tagger reads beside the tokens: the forms of the word of each token.

Training, evaluation and prediction make the features here, so that they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.linear.forms import FORMS, hashed_forms
from trifold.linear.ngrams import Ids
from trifold.nn import ModelConfig
from trifold.nn.inputs import RowFeatures
from trifold.nn.parts import LogitsPart, part_of
from trifold.ragged import Ragged

NO_WORD = -1  # of special tokens and padding


def form_buckets(config: ModelConfig) -> int:
    """The buckets of forms that a model reads; 0 without such a path."""
    return part_of(LogitsPart, config).columns(config).forms


@dataclass(frozen=True)
class WordRows:
    """The words of N rows of tokens.

    forms (W, FORMS): the buckets of the forms of all words. starts (N,): the number of the first
    word of each row. words: the number in its row of the word of each token, or NO_WORD. logits
    (W, C): what the path has for the words, if it is known.
    """

    forms: Ids
    starts: Ids
    words: Ragged
    logits: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        sentences: Sequence[Sequence[str]],
        words_of_tokens: Sequence[Sequence[int]],
    ) -> WordRows | None:
        """The words of sentences, with the number of the word of each token; None if the model does
        not read them.
        """
        buckets = form_buckets(config)
        if not buckets:
            return None
        starts = np.cumsum([0, *map(len, sentences)])[:-1]
        words = Ragged.of([[*numbers] for numbers in words_of_tokens])
        return cls(hashed_forms(sentences, buckets), starts, words)

    def features(self, shape: tuple[int, int], rows: Ids, lengths: Ids) -> RowFeatures:
        """The features of all tokens of the given rows, each with so many tokens, in the layout of
        states: (1, N) one row after the other, or (B, T) padded at the end.
        """
        joined = self.words.joined(rows, lengths)
        numbers = np.where(joined >= 0, joined + np.repeat(self.starts[rows], lengths), NO_WORD)
        words = np.full(shape, NO_WORD)
        if shape[0] == 1:
            words[0, : len(numbers)] = numbers
        else:
            words[np.arange(shape[1]) < lengths[:, None]] = numbers
        return self._features_of(words.ravel())

    def _features_of(self, words: Ids) -> RowFeatures:
        """The features of words (T,) by their numbers; NO_WORD has none."""
        if self.logits is not None:
            none = np.zeros((1, self.logits.shape[1]), np.float32)  # its place is NO_WORD
            return RowFeatures.known(torch.from_numpy(np.concatenate([self.logits, none])[words]))
        has_word = words != NO_WORD
        ids = torch.from_numpy(self.forms[words[has_word]].ravel())
        starts = np.cumsum(np.concatenate([[0], np.where(has_word, FORMS, 0)]))
        return RowFeatures(ids, torch.ones(len(ids)), torch.from_numpy(starts))
