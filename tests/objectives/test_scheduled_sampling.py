from __future__ import annotations

import math
from itertools import pairwise

import pytest

from trifold.errors import SettingsError
from trifold.objectives.scheduled_sampling import ScheduledSampling, fitting_k
from trifold.objectives.translate import TranslateSettings
from trifold.recipe import load_recipe

# schedule -> ε_i of Bengio et al. 2015, section 2.4, from i and k; and a k
EQUATIONS = {
    "constant": (lambda i, k: 0.0, None),
    "linear": (lambda i, k: 1 - k * i, 0.003),
    "exponential": (lambda i, k: k**i, 0.99),
    "inverse-sigmoid": (lambda i, k: k / (k + math.exp(i / k)), 20.0),
}
every_schedule = pytest.mark.parametrize("schedule", EQUATIONS)


@every_schedule
def test_share_follows_the_equation_after_the_first_steps(schedule):
    equation, k = EQUATIONS[schedule]
    sampling = ScheduledSampling(share=0.6, schedule=schedule, first=10, k=k)
    assert {sampling.share_at(step) for step in range(1, 11)} == {0.0}
    for i in range(1, 400):
        assert sampling.share_at(10 + i) == pytest.approx(min(0.6, 1 - equation(i, k)))
    assert sampling.share_at(2**31 - 1) == 0.6


@every_schedule
def test_share_never_falls_and_ends_at_the_last_step_by_default(schedule):
    values = {"share": 0.7, "schedule": schedule, "first": 30}
    sampling = ScheduledSampling.parse({**values, "k": fitting_k(values, 300)})
    shares = [sampling.share_at(step) for step in range(1, 301)]
    assert all(a <= b for a, b in pairwise(shares)) and shares[-1] == pytest.approx(0.7, rel=1e-2)
    if schedule != "constant":
        assert shares[29] == 0.0 < shares[30] and shares[200] < 0.69


def test_recipe_gets_the_constant_for_its_steps():
    keys = {"share": 0.5, "first": 4}
    overrides = {f"task.scheduled_sampling.{key}": value for key, value in keys.items()}
    recipe = load_recipe("smoke", {**overrides, "train.steps": 14})
    assert recipe.task.scheduled_sampling.k == 0.05
    assert recipe.notes == ["for 14 steps: task.scheduled_sampling.k=0.05"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (0.25, r": a group of keys is required; write task\.scheduled_sampling\.share=0\.25"),
        ({"first": 5}, ": share is 0, so nothing is sampled; set share, such as 0.25"),
        ({"share": 0.5}, ": schedule linear requires k above 0, not None"),
        ({"share": 0.5, "k": 0}, ": schedule linear requires k above 0, not 0"),
        (
            {"share": 0.5, "schedule": "exponential", "k": 2},
            ": schedule exponential requires k between 0 and 1, not 2",
        ),
        (
            {"share": 0.5, "schedule": "inverse-sigmoid", "k": 0.5},
            ": schedule inverse-sigmoid requires k 1 or more, not 0.5",
        ),
        (
            {"share": 0.5, "schedule": "constant", "k": 2},
            ": k 2 has no effect with schedule constant; remove it",
        ),
        ({"share": 1}, r"\.share: input should be less than 1, got 1"),
        ({"schedule": "cosine"}, r"\.schedule: .*'inverse-sigmoid'.*got 'cosine'"),
    ],
)
def test_wrong_settings_are_errors(values, message):
    with pytest.raises(SettingsError, match=rf"task\.scheduled_sampling{message}"):
        TranslateSettings.parse({"scheduled_sampling": values}, at="task")
