"""A linear model on the pixels of an image: logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.outputs import fit_outputs, known_rows, predict_outputs
from trifold.linear.logistic import LinearModel
from trifold.linear.matrix import FeatureMatrix, dense

SIDE = 32  # pixels, to which larger images are averaged
STRENGTH = 0.01  # C; there are many pixels, whose neighbours are alike


@dataclass
class PixelModel(Baseline):
    """Weights of the pixels, from which the mean of the training images is subtracted."""

    means: Tensor
    model: LinearModel
    name = "a linear model on pixels"

    @staticmethod
    def size_of(rows: Any) -> int:
        """The number of values that the model reads of an image."""
        height, width, channels = rows.columns["image"][0].shape
        return int(min(height, SIDE) * min(width, SIDE) * channels)

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> PixelModel:
        train = train.select(known_rows(task, train.labels))
        pixels = _pixels(train)
        means = pixels.mean(0)
        model = fit_outputs(task, dense(pixels - means), train, STRENGTH, poll)
        return cls(means, model)

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        return predict_outputs(task, self.model, self._features(rows))

    def _features(self, rows: LabelledRows) -> FeatureMatrix:
        return dense(_pixels(rows) - self.means)

    def state(self) -> State:
        model = self.model
        return State({}, {"means": self.means, "weights": model.weights, "bias": model.bias})

    @classmethod
    def restore(cls, state: State) -> PixelModel:
        means, weights, bias = (state.tensors[name] for name in ("means", "weights", "bias"))
        if weights.shape != (*means.shape, *bias.shape):
            raise ValueError("the shapes of the weights do not fit")
        return cls(means.float(), LinearModel(weights.float(), bias.float()))


def _pixels(rows: LabelledRows) -> Tensor:
    """(N, P) the pixels of images, 0 to 1."""
    parts = []
    images = rows.column("image")
    for start in range(0, len(images), 1000):
        batch = torch.from_numpy(np.stack(images[start : start + 1000])).permute(0, 3, 1, 2)
        values = batch.float() / 255
        height, width = (min(side, SIDE) for side in values.shape[2:])
        parts.append(F.adaptive_avg_pool2d(values, (height, width)).flatten(1))
    return torch.cat(parts)
