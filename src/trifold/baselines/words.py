"""A linear model on words and pairs of adjacent words: TF-IDF and logistic or ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import decode_texts, encode_texts
from trifold.baselines.outputs import fit_outputs, known_rows, predict_outputs, problem_of
from trifold.linear.logistic import LinearModel
from trifold.linear.ngrams import word_ngrams
from trifold.linear.tfidf import Tfidf
from trifold.nn.config import REGRESSION

STRENGTH = 10.0  # C; on 2,000 to 6,000 sentences better than 1
MOST_WEIGHTS = 2**22  # rare n-grams are left out until there are so few


@dataclass
class WordModel(Baseline):
    """The n-grams of the training texts, and their weights."""

    tfidf: Tfidf
    model: LinearModel
    name = "a linear model on words"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> WordModel | None:
        train = train.select(known_rows(task, train.labels))
        columns = 1
        strength = 1.0
        if problem_of(task) != REGRESSION:
            columns = task.classes
            strength = STRENGTH
        tfidf, features = Tfidf.fit(word_ngrams, train.texts, MOST_WEIGHTS // columns)
        if not tfidf.names:
            return None
        return cls(tfidf, fit_outputs(task, features, train, strength, poll))

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        return predict_outputs(task, self.model, self.tfidf.transform(rows.texts))

    def state(self) -> State:
        weights = self.model.weights
        if weights.shape[1] > 1:  # of which the larger logit matters, not the last digits
            weights = weights.float()
        tensors = {
            "names": encode_texts(self.tfidf.names),
            "idf": torch.from_numpy(self.tfidf.idf),
            "weights": weights,
            "bias": self.model.bias,
        }
        return State({}, tensors)

    @classmethod
    def restore(cls, state: State) -> WordModel:
        tensors = state.tensors
        names = decode_texts(tensors["names"])
        idf = tensors["idf"].numpy()
        weights, bias = (tensors[name].double() for name in ("weights", "bias"))
        if idf.shape != (len(names),) or weights.shape != (len(names), *bias.shape):
            raise ValueError("the shapes of the weights do not fit")
        return cls(Tfidf(word_ngrams, names, np.asarray(idf)), LinearModel(weights, bias))
