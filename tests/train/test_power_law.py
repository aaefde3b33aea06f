"""The fit of power laws: exact on exact data, the optimum of another minimizer on noisy data,
honest intervals.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from trifold.errors import UsageError
from trifold.train.power_law import DELTA, fit

TRUE = {"E": 1.4, "A": 40.0, "alpha": 0.38, "B": 400.0, "beta": 0.42}
TRUE["a"] = TRUE["beta"] / (TRUE["alpha"] + TRUE["beta"])
GRID = np.array([(n, d) for n in np.geomspace(1e4, 1e6, 4) for d in np.geomspace(2e5, 4e6, 4)])


def losses(points, noise=0.0, seed=0):
    n, d = points.T
    exact = TRUE["E"] + TRUE["A"] / n ** TRUE["alpha"] + TRUE["B"] / d ** TRUE["beta"]
    return exact * np.exp(noise * np.random.default_rng(seed).standard_normal(len(points)))


def fit_grid(found, points=GRID, resamples=200):
    return fit(points, found, resamples)


@pytest.mark.slow
def test_exact_losses_give_the_exact_law():
    law = fit_grid(losses(GRID))
    assert law.estimates == pytest.approx(TRUE, rel=1e-6)
    assert law.error < 1e-9
    for name, (low, high) in law.intervals.items():
        assert (low, high) == pytest.approx((TRUE[name], TRUE[name]), rel=1e-4)
    assert law.loss(*GRID.T) == pytest.approx(losses(GRID))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_no_other_minimizer_finds_a_lower_sum(noise):
    found = losses(GRID, noise)
    n, d = np.log(GRID.T)

    def total(point):
        predicted = np.logaddexp(
            np.logaddexp(point[0] - point[1] * n, point[2] - point[3] * d), point[4]
        )
        size = np.abs(predicted - np.log(found))
        return np.where(size < DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum()

    starts = [
        (a, x, b, x, e) for a in (2, 6) for b in (2, 6) for x in (0.2, 0.6) for e in (-0.5, 0.3)
    ]
    best = min(minimize(total, start, method="L-BFGS-B").fun for start in starts)
    law = fit_grid(found, resamples=2).estimates
    own = total([np.log(law["A"]), law["alpha"], np.log(law["B"]), law["beta"], np.log(law["E"])])
    assert own <= best * 1.01


@pytest.mark.slow
def test_intervals_of_noisy_losses_cover_the_truth():
    covered = []
    for seed in range(10):
        law = fit_grid(losses(GRID, 0.005, seed), resamples=100)
        covered += [low <= TRUE[name] <= high for name, (low, high) in law.intervals.items()]
        assert all(
            low <= law.estimates[name] <= high for name, (low, high) in law.intervals.items()
        )
    assert np.mean(covered) >= 0.85


@pytest.mark.slow
def test_the_order_of_the_runs_changes_the_law_by_rounding_only():
    found = losses(GRID, 0.005)
    order = np.random.default_rng(1).permutation(len(GRID))
    shuffled = fit_grid(found[order], GRID[order], resamples=2)
    law = fit_grid(found, resamples=2)
    assert shuffled.estimates == pytest.approx(law.estimates, rel=1e-3)


def test_too_few_runs_are_rejected():
    with pytest.raises(UsageError, match="2 sizes and 3 numbers of tokens do not determine"):
        fit([(n, d) for n in (1, 2) for d in (1, 2, 3)], [1.0] * 6)
