"""Ridge regression: a number as a linear function of features.

The weights minimize Σ (number - output)² + strength · ‖w‖², as those of scikit-learn's `Ridge` do;
the bias is not in the second term. They are found by conjugate gradients.
"""

import torch
from torch import Tensor

from trifold.linear.conjugate_gradients import conjugate_gradients
from trifold.linear.logistic import LinearModel
from trifold.linear.matrix import FeatureMatrix

TOLERANCE = 1e-7  # of the residual, as a share of the first one
STEPS = 500


def fit_ridge(features: FeatureMatrix, numbers: Tensor, strength: float) -> LinearModel:
    """The model of numbers (N,)."""
    numbers = numbers.to(features.dtype)[:, None]
    mean = numbers.mean()
    means = features.gradient(torch.ones_like(numbers)) / len(numbers)  # (F, 1) of the features

    def apply(weights: Tensor) -> Tensor:
        """(XᵀX + strength · I) · weights, X being the features without their means: the outputs add
        up to 0, so that the means do not matter on the left.
        """
        outputs = features.times(weights) - means.T @ weights
        return features.gradient(outputs) + strength * weights

    weights, _ = conjugate_gradients(apply, features.gradient(numbers - mean), TOLERANCE, STEPS)
    return LinearModel(weights, mean - (means.T @ weights)[0])
