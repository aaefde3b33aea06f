"""The power law L(N, D) = E + A/N^α + B/D^β of the losses of several runs (Hoffmann et al. 2022,
equation 2).

N: parameters; D: tokens. The fit minimizes the sum of Huber losses (δ = 0.001) of log L(N, D) - log
L over exponents and logarithms of A, B and E, from several starts (section 3.3), by
Levenberg-Marquardt with Huber's weights.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError

Array: TypeAlias = NDArray[np.float64]

DELTA = 1e-3
ITERATIONS = 300
FORM = "L(N, D) = E + A/N^alpha + B/D^beta"


class Law(NamedTuple):
    """Parameter -> estimate and 95 % interval; error: the mean of |log L(N, D) - log L| over the
    runs.

    The best N for a number of FLOPs C is proportional to C^a, a = beta/(alpha + beta) (equation 4).
    """

    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    error: float

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """L at N and D, numbers or arrays."""
        e, a, b, alpha, beta, _ = self.estimates.values()
        return e + a / parameters**alpha + b / tokens**beta


def check_points(points: Sequence[tuple[float, float]]) -> None:
    """Raises UsageError if the N and D of the runs do not determine the law."""
    counts = [len({*values}) for values in zip(*points, strict=True)]
    if min(counts) < 3:
        raise UsageError(
            f"{counts[0]} sizes and {counts[1]} numbers of tokens do not determine {FORM}; give "
            "at least 3 of each"
        )


def fit(
    points: Sequence[tuple[float, float]], losses: Sequence[float], resamples: int = 1000
) -> Law:
    """Fit the law to points (N, D), with the percentiles of a bootstrap over the runs. Raises
    UsageError.
    """
    check_points(points)
    values = np.array(points, float)
    target = np.log(losses)
    total = len(losses)
    mean = np.log(values).mean(0)
    logs = np.zeros((total, 3))  # of the bases of three powers; that of E is 1
    logs[:, :2] = np.log(values) - mean  # so that coefficients and exponents are nearly independent
    starts = []
    for share, alpha, beta in product((0.3, 0.7, 0.95), *[(0.1, 0.4, 1.0)] * 2):
        constant = share * np.exp(target.min())
        power = np.log((np.exp(target.mean()) - constant) / 2)
        starts.append([power, power, np.log(constant), alpha, beta, 0.0])
    minima, cost = _minimize(logs, target, np.array(starts))
    best = minima[[cost.argmin()]]
    rng = np.random.default_rng(1)
    rows = list[Any]()
    while len(rows) < resamples:
        drawn = rng.integers(total, size=total)
        # A resample that does not determine the parameters is drawn again.
        if len({*drawn}) > 4 and all(len({*column}) > 2 for column in values[drawn].T):
            rows.append(drawn)
    resampled, _ = _minimize(logs[rows], target[rows], best.repeat(resamples, 0))
    # Row 0 is the estimate, the others are those of the resamples.
    log_a, log_b, log_e, alpha, beta, _ = np.concatenate([best, resampled]).T
    named = {
        "E": np.exp(log_e),
        "A": np.exp(log_a + alpha * mean[0]),
        "B": np.exp(log_b + beta * mean[1]),
    }
    named |= {"alpha": alpha, "beta": beta, "a": beta / (alpha + beta)}
    limits = {
        name: tuple(np.percentile(column[1:], [2.5, 97.5]).tolist())
        for name, column in named.items()
    }
    error = float(np.abs(_predict(best, logs)[0] - target).mean())
    return Law({name: float(column[0]) for name, column in named.items()}, limits, error)


def _predict(points: Array, logs: Array) -> tuple[Array, Array]:
    """log L (P, R) and its derivatives (P, R, 6) at points (P, 6), for logs (R, 3) or (P, R, 3)."""
    coefficients, exponents = np.split(points[:, None], 2, -1)
    terms = np.exp(coefficients - exponents * logs)
    shares = terms / terms.sum(-1, keepdims=True)
    return np.log(terms.sum(-1)), np.concatenate([shares, -shares * logs], -1)


def _minimize(logs: Array, target: Array, points: Array) -> tuple[Array, Array]:
    """Minima near points (P, 6) of the sums of Huber losses, and these sums (P,)."""
    cost = np.full(len(points), np.inf)
    damping = np.full(len(points), 1e-2)
    trial = points
    for _ in range(ITERATIONS):
        size = np.abs(_predict(trial, logs)[0] - target)
        trial_cost = np.where(size < DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum(1)
        better = trial_cost < cost
        points = np.where(better[:, None], trial, points)
        cost = np.minimum(trial_cost, cost)
        damping = np.clip(damping * np.where(better, 0.3, 4.0), 1e-9, 1e9)
        predicted, slopes = _predict(points, logs)
        errors = predicted - target
        scaled = np.minimum(1, DELTA / np.maximum(np.abs(errors), 1e-300))
        transposed = (slopes * scaled[..., None]).swapaxes(1, 2)
        matrix = transposed @ slopes
        gradient = transposed @ errors[..., None]
        diagonal = np.einsum("pii->pi", matrix)  # a view
        diagonal += damping[:, None] * (diagonal + 1e-6 * diagonal.max(1, keepdims=True)) + 1e-300
        trial = points - np.clip(np.linalg.solve(matrix, gradient)[..., 0], -1, 1)
    return points, cost
