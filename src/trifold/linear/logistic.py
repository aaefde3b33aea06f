"""Logistic regression: one class of several, or any number of labels.

The weights minimize C · Σ - log P(label | features) + ½ ‖W‖², as those of scikit-learn's
`LogisticRegression` do; the bias is not in the second term. They are found by Newton's method from
zero, whose directions are computed by conjugate gradients, which need products with the features
only (Lin, Weng & Keerthi 2008). They are preconditioned by the diagonal of the second derivative
(Hsia, Chiang & Lin 2018), because frequent features have a curvature far above that of rare ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.linear.matrix import FeatureMatrix

TOLERANCE = 1e-4  # of the gradient, as a share of the first one
STEPS = 50
DIRECTION_STEPS = 50  # of conjugate gradients
# Multiplications after which a fit of very many features and classes ends, in seconds. Its weights
# are smaller than those of the minimum, which hardly changes its predictions.
WORK = 3_000_000_000
FEWEST_PRODUCTS = 20  # with the features
HALVINGS = 20  # of a step that does not reduce the loss
SUFFICIENT = 1e-4  # share of the reduction that the gradient promises
SMALLEST_VARIANCE = 1e-6  # of the labels of all rows, whose predictions may be certain
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


def _minimize(
    features: FeatureMatrix, columns: int, strength: float, loss: _Loss, poll: Poll
) -> LinearModel:
    """Newton's method. All parameters are one tensor (F + 1, C), whose last row is the bias."""
    rows, count = features.shape
    decay = torch.full((count + 1, 1), 1 / (strength * max(rows, 1)), dtype=features.dtype)
    decay[-1] = 0
    parameters = torch.zeros(count + 1, columns, dtype=features.dtype)

    def outputs(values: Tensor) -> Tensor:
        return features.times(values[:-1]) + values[-1]

    def gradient(errors: Tensor) -> Tensor:
        return torch.cat([features.gradient(errors), errors.sum(0, keepdim=True)]) / rows

    def curvature(variances: Tensor) -> Tensor:
        """The diagonal of the second derivative of the loss, by the variances of the labels."""
        of_bias = variances.sum(0, keepdim=True).clamp_min(SMALLEST_VARIANCE)
        return torch.cat([features.gradient_of_squares(variances), of_bias]) / rows

    def value(logits: Tensor, parameters: Tensor) -> Tensor:
        return loss.sum(logits) / rows + (decay * parameters**2).sum() / 2

    left = max(FEWEST_PRODUCTS, WORK // max(1, features.work * columns))
    logits = outputs(parameters)
    current = value(logits, parameters)
    smallest = None
    for _ in range(STEPS):
        probabilities = loss.probabilities(logits)
        slope = gradient(loss.errors(probabilities)) + decay * parameters
        norm = slope.norm()
        if smallest is None:
            smallest = TOLERANCE * norm
        if norm <= smallest or left <= 0:
            break

        def curved(direction: Tensor, probabilities: Tensor = probabilities) -> Tensor:
            nonlocal left
            poll()
            left -= 1
            return gradient(loss.curved(probabilities, outputs(direction))) + decay * direction

        # The closer to the minimum, the more exact the direction: convergence is quadratic.
        accuracy = min(0.5, float(norm) ** 0.5)
        diagonal = curvature(probabilities * (1 - probabilities)) + decay
        steps = min(DIRECTION_STEPS, left)
        direction = conjugate_gradients(curved, -slope, accuracy, steps, diagonal)
        promised = (slope * direction).sum()
        change = outputs(direction)
        step = 1.0
        for _ in range(HALVINGS):
            found = value(logits + step * change, parameters + step * direction)
            if found <= current + SUFFICIENT * step * promised:
                break
            step /= 2
        else:  # no step is better, within rounding
            break
        parameters = parameters + step * direction
        logits = logits + step * change
        current = found
    return LinearModel(parameters[:-1], parameters[-1])


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    target: Tensor,
    tolerance: float,
    steps: int = DIRECTION_STEPS,
    diagonal: Tensor | float = 1.0,
) -> Tensor:
    """x with apply(x) = target, from zero. apply: a product with a positive definite matrix;
    tolerance: of the residual, as a share of the first one; diagonal: about that of the matrix, by
    which directions are scaled (Jacobi).
    """
    solution = torch.zeros_like(target)
    residual = target
    scaled = residual / diagonal
    direction = scaled
    square = (residual * scaled).sum()
    smallest = square * tolerance**2
    for _ in range(steps):
        if square <= smallest:
            break
        image = apply(direction)
        step = square / (direction * image).sum()
        solution = solution + step * direction
        residual = residual - step * image
        scaled = residual / diagonal
        previous = square
        square = (residual * scaled).sum()
        direction = scaled + square / previous * direction
    return solution
