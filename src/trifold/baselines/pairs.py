"""What two texts share, as a model of pairs of texts (`linear.overlap`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import overlap_of, overlap_state
from trifold.baselines.outputs import fit_outputs, known_rows, predict_outputs, problem_of
from trifold.linear.logistic import LinearModel
from trifold.linear.matrix import dense
from trifold.linear.overlap import NAMES, Overlap
from trifold.nn.config import REGRESSION
from trifold.scripts import unicode_words


def fit_overlap(train: LabelledRows) -> Overlap:
    """The idf of the words of both texts."""
    return Overlap.fit([*train.column("text"), *train.column("pair")])


def features_of(overlap: Overlap, rows: LabelledRows) -> NDArray[np.float64]:
    """(N, 12)."""
    return overlap.features(rows.column("text"), rows.column("pair"))


def has_scores(task: Any) -> bool:
    """Whether the rows of an objective have labels to learn: embeddings of pairs without scores
    have none.
    """
    return getattr(task, "top", 0) is not None


@dataclass
class PairOverlap(Baseline):
    """Logistic or ridge regression on twelve features, which are standardized by the training
    rows.
    """

    overlap: Overlap
    means: Tensor
    deviations: Tensor
    model: LinearModel
    name = "a linear model on shared words"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> PairOverlap | None:
        if not train.has_pairs or not has_scores(task):
            return None
        train = train.select(known_rows(task, train.labels))
        overlap = fit_overlap(train)
        values = torch.from_numpy(features_of(overlap, train))
        means = values.mean(0)
        deviations = values.std(0, correction=0)
        deviations[deviations == 0] = 1
        features = dense((values - means) / deviations)
        model = fit_outputs(task, features, train, 1.0, poll)
        return cls(overlap, means, deviations, model)

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        values = torch.from_numpy(features_of(self.overlap, rows))
        return predict_outputs(task, self.model, dense((values - self.means) / self.deviations))

    def state(self) -> State:
        values, tensors = overlap_state(self.overlap)
        fitted = {
            "means": self.means,
            "deviations": self.deviations,
            "weights": self.model.weights,
            "bias": self.model.bias,
        }
        return State(values, tensors | fitted)

    @classmethod
    def restore(cls, state: State) -> PairOverlap:
        names = ("means", "deviations", "weights", "bias")
        means, deviations, weights, bias = (state.tensors[name].double() for name in names)
        if not means.shape == deviations.shape == weights.shape[:1] == (len(NAMES),):
            raise ValueError("the shapes of the weights do not fit")
        return cls(overlap_of(state), means, deviations, LinearModel(weights, bias))


@dataclass
class SimilarWords(Baseline):
    """The cosine of the TF-IDF of two texts as their similarity, which learns no scores."""

    overlap: Overlap
    name = "the cosine of TF-IDF"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> SimilarWords | None:
        if not train.has_pairs or not has_scores(task) or problem_of(task) != REGRESSION:
            return None
        return cls(fit_overlap(train))

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        words = [map(unicode_words, rows.column(role)) for role in ("text", "pair")]
        return np.array([self.overlap.cosine(*pair) for pair in zip(*words, strict=True)])

    def state(self) -> State:
        return State(*overlap_state(self.overlap))

    @classmethod
    def restore(cls, state: State) -> SimilarWords:
        return cls(overlap_of(state))
