"""Logistic regression: one class of several, or any number of labels.

The weights minimize C · Σ - log P(label | features) + ½ ‖W‖², as those of scikit-learn's
`LogisticRegression` do; the bias is not in the second term. They are found by Newton's method from
zero, whose steps are computed by conjugate gradients, which need products with the features only
(Lin, Weng & Keerthi 2008). They are preconditioned by the diagonal of the second derivative (Hsia,
Chiang & Lin 2018), because frequent features have a curvature far above that of rare ones. A step
ends where the second derivative is not trusted: where predictions become certain, it overestimates
the reduction of the loss.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.linear.conjugate_gradients import conjugate_gradients
from trifold.linear.matrix import FeatureMatrix

TOLERANCE = 1e-4  # of the gradient, as a share of the first one
STEPS = 50
DIRECTION_STEPS = 50  # of conjugate gradients
# Multiplications after which a fit of very many features and classes ends, in seconds. Its weights
# are not those of the minimum, which hardly changes its predictions.
WORK = 3_000_000_000
FEWEST_PRODUCTS = 20  # with the features
# Of a step: the share of the promised reduction of the loss from which it is taken, and below and
# above which the next one may be shorter and longer.
TAKEN, SHORTER, LONGER = 1e-4, 0.25, 0.75
Poll: TypeAlias = Callable[[], None]


def ignore() -> None:
    """The default of `poll`."""


@dataclass(frozen=True)
class LinearModel:
    """logits (N, C) = features (N, F) · weights (F, C) + bias (C,)."""

    weights: Tensor
    bias: Tensor

    def logits(self, features: FeatureMatrix) -> Tensor:
        """(N, C)."""
        return features.times(self.weights.to(features.dtype)) + self.bias.to(features.dtype)


class _Loss(NamedTuple):
    """A loss of logits (N, C): its sum; the probabilities of logits; its gradient by logits, and
    the product of its second derivative with a direction (N, C), at probabilities.
    """

    sum: Callable[[Tensor], Tensor]
    probabilities: Callable[[Tensor], Tensor]
    errors: Callable[[Tensor], Tensor]
    curved: Callable[[Tensor, Tensor], Tensor]


def fit_classes(
    features: FeatureMatrix, labels: Tensor, classes: int, strength: float, poll: Poll = ignore
) -> LinearModel:
    """The model of one class of several. labels (N,): classes; strength: C.

    Two classes have one column of weights, as in scikit-learn; the logits of the first are 0.
    poll: called in each step; it may raise to end the fit.
    """
    if classes <= 2:
        one = fit_labels(features, labels[:, None], strength, poll)
        return LinearModel(F.pad(one.weights, (1, 0)), F.pad(one.bias, (1, 0)))
    expected = F.one_hot(labels, classes).to(features.dtype)

    def curved(probabilities: Tensor, directions: Tensor) -> Tensor:
        weighted = probabilities * directions
        return weighted - probabilities * weighted.sum(1, keepdim=True)

    loss = _Loss(
        lambda logits: F.cross_entropy(logits, labels, reduction="sum"),
        lambda logits: logits.softmax(1),
        lambda probabilities: probabilities - expected,
        curved,
    )
    return _minimize(features, classes, strength, loss, poll)


def fit_labels(
    features: FeatureMatrix, labels: Tensor, strength: float, poll: Poll = ignore
) -> LinearModel:
    """The model of any number of labels, each of which is a problem of its own. labels (N, C)."""
    expected = labels.to(features.dtype)
    loss = _Loss(
        lambda logits: F.binary_cross_entropy_with_logits(logits, expected, reduction="sum"),
        torch.sigmoid,
        lambda probabilities: probabilities - expected,
        lambda probabilities, directions: probabilities * (1 - probabilities) * directions,
    )
    return _minimize(features, labels.shape[1], strength, loss, poll)


@dataclass(frozen=True)
class _Objective:
    """What is minimized: the mean loss and the decay of the weights, a function of parameters
    (F + 1, C), whose last row is the bias. decay (F + 1, 1): by parameter.
    """

    features: FeatureMatrix
    loss: _Loss
    decay: Tensor

    def logits(self, parameters: Tensor) -> Tensor:
        return self.features.times(parameters[:-1]) + parameters[-1]

    def value(self, logits: Tensor, parameters: Tensor) -> Tensor:
        return self.loss.sum(logits) / len(logits) + (self.decay * parameters**2).sum() / 2

    def slope(self, probabilities: Tensor, parameters: Tensor) -> Tensor:
        """The first derivative at parameters and their probabilities."""
        return self._gradient(self.loss.errors(probabilities)) + self.decay * parameters

    def curved(self, probabilities: Tensor, direction: Tensor) -> Tensor:
        """The product of the second derivative with a direction."""
        curved = self.loss.curved(probabilities, self.logits(direction))
        return self._gradient(curved) + self.decay * direction

    def diagonal(self, probabilities: Tensor) -> Tensor:
        """The diagonal of the second derivative; the decay is added to that of the bias, too, so
        that no value is 0.
        """
        variances = probabilities * (1 - probabilities)
        of_bias = variances.sum(0, keepdim=True)
        of_loss = torch.cat([self.features.gradient_of_squares(variances), of_bias])
        return of_loss / len(probabilities) + self.decay[0]

    def _gradient(self, errors: Tensor) -> Tensor:
        of_bias = errors.sum(0, keepdim=True)
        return torch.cat([self.features.gradient(errors), of_bias]) / len(errors)


def _minimize(
    features: FeatureMatrix, columns: int, strength: float, loss: _Loss, poll: Poll
) -> LinearModel:
    """Newton's method, with steps in a region in which it is trusted."""
    rows, count = features.shape
    decay = torch.full((count + 1, 1), 1 / (strength * max(rows, 1)), dtype=features.dtype)
    decay[-1] = 0
    objective = _Objective(features, loss, decay)
    parameters = torch.zeros(count + 1, columns, dtype=features.dtype)
    logits = objective.logits(parameters)
    current = objective.value(logits, parameters)
    smallest = None
    radius = math.inf
    left = max(FEWEST_PRODUCTS, WORK // max(1, features.work * columns))
    for _ in range(STEPS):
        probabilities = loss.probabilities(logits)
        slope = objective.slope(probabilities, parameters)
        norm = slope.norm()
        if smallest is None:
            smallest = TOLERANCE * norm
        if norm <= smallest or left <= 0:
            break

        def curved(direction: Tensor, probabilities: Tensor = probabilities) -> Tensor:
            nonlocal left
            poll()
            left -= 1
            return objective.curved(probabilities, direction)

        # The closer to the minimum, the more exact the step: convergence is quadratic.
        accuracy = min(0.5, float(norm) ** 0.5)
        diagonal = objective.diagonal(probabilities)
        steps = min(DIRECTION_STEPS, left)
        step, image = conjugate_gradients(curved, -slope, accuracy, steps, diagonal, radius)
        promised = -(step * (slope + image / 2)).sum()
        if not promised > torch.finfo(features.dtype).eps * current:  # within rounding, or NaN
            break
        change = objective.logits(step)
        found = objective.value(logits + change, parameters + step)
        share = float((current - found) / promised)
        radius = _next_radius(radius, float((diagonal * step**2).sum() ** 0.5), share)
        if share > TAKEN:
            parameters = parameters + step
            logits = logits + change
            current = found
    return LinearModel(parameters[:-1], parameters[-1])


def _next_radius(radius: float, length: float, share: float) -> float:
    """The radius after a step of this length, which kept a share of its promise."""
    if share > LONGER:
        return max(radius, 2 * length)
    if share >= SHORTER:
        return radius
    return length / 4
