from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from trifold.recipe import FINITE_SCHEDULES, TrainSettings
from trifold.train.optimizers import learning_rate, peak_rate

SHAPES = get_args(TrainSettings.model_fields["schedule"].annotation)

# Every shape, and the one with two forms in both.
KINDS = [
    *((shape, "linear") for shape in SHAPES),
    ("warmup-stable-decay", "1-sqrt"),
]
every_kind = pytest.mark.parametrize(("shape", "form"), KINDS)


def rate(shape, step, *, peak, warmup, steps, final=0.0, decay=1, form="linear"):
    settings = TrainSettings.model_construct(
        schedule=shape, warmup=warmup, steps=steps, final_rate=final, decay=decay, decay_form=form
    )
    return learning_rate(settings, step, peak)


def course(shape, form, *, warmup, steps, peak=0.3, final=0.0, decay=20, beyond=0):
    """The rates of updates 1, 2, …"""
    return [
        rate(shape, step, peak=peak, warmup=warmup, steps=steps, final=final, decay=decay, form=form)
        for step in range(1, steps + beyond + 1)
    ]


@given(d_model=st.integers(1, 4096), warmup=st.integers(1, 20_000), step=st.integers(1, 400_000))
def test_inverse_sqrt_with_its_own_peak_is_equation_3_of_the_paper(d_model, warmup, step):
    ours = rate("inverse-sqrt", step, peak=peak_rate(d_model, warmup), warmup=warmup, steps=400_000)
    assert ours == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-12)


def test_the_base_model_of_the_paper_peaks_at_its_known_rate():
    assert peak_rate(512, 4000) == pytest.approx(6.9877e-4, rel=1e-4)


@given(step=st.integers(1, 100_000))
def test_the_rates_of_adafactors_paper_are_inverse_sqrt(step):
    ours = rate("inverse-sqrt", step, peak=0.01, warmup=10_000, steps=100_000)
    assert ours == pytest.approx(min(1e-6 * step, step**-0.5), rel=1e-12)


@every_kind
@given(warmup=st.integers(0, 50), steps=st.integers(71, 500), final=st.sampled_from([0.0, 0.1, 1.0]))
def test_every_shape_rises_to_its_peak_and_never_rises_again(shape, form, warmup, steps, final):
    final = final if shape in FINITE_SCHEDULES else 0.0
    rates = course(shape, form, warmup=warmup, steps=steps, final=final, beyond=30)
    top = max(warmup, 1)
    if warmup:
        assert rates[warmup - 1] == pytest.approx(0.3)
        assert rates[:warmup] == pytest.approx([0.3 * step / warmup for step in range(1, warmup + 1)])
    assert max(rates) <= 0.3 * (1 + 1e-12)
    assert all(
        later <= earlier + 1e-15 for earlier, later in zip(rates[top - 1 :], rates[top:], strict=False)
    )
    assert min(rates[top - 1 :]) >= 0.3 * final - 1e-15


@given(warmup=st.integers(0, 50), steps=st.integers(70, 500), share=st.floats(0, 1))
def test_each_shape_after_the_warm_up_is_its_formula(warmup, steps, share):
    step = max(1, warmup, round(warmup + share * (steps - warmup)))
    done = (step - warmup) / (steps - warmup)
    fallen = max(0.0, (step - (steps - 20)) / 20)
    formulas = {
        ("inverse-sqrt", "linear"): (max(warmup, 1) / step) ** 0.5,
        ("linear", "linear"): 1 - done,
        ("cosine", "linear"): (1 + math.cos(math.pi * done)) / 2,
        ("constant", "linear"): 1.0,
        ("warmup-stable-decay", "linear"): 1 - fallen,
        ("warmup-stable-decay", "1-sqrt"): 1 - fallen**0.5,
    }
    assert set(formulas) == set(KINDS)
    for (shape, form), share_of_peak in formulas.items():
        ours = rate(shape, step, peak=2.0, warmup=warmup, steps=steps, decay=20, form=form)
        assert ours == pytest.approx(2 * share_of_peak, abs=1e-9)
        floored = rate(shape, step, peak=2.0, warmup=warmup, steps=steps, final=0.25, decay=20, form=form)
        assert floored == pytest.approx(0.5 + 1.5 * share_of_peak, abs=1e-9)


@pytest.mark.parametrize("final", [0.0, 0.1])
@every_kind
def test_the_last_step_ends_where_the_shape_ends_and_going_on_stays_there(shape, form, final):
    if shape == "inverse-sqrt":
        return  # it has no end
    end = 1.0 if shape == "constant" else final
    for step in (100, 150):
        ours = rate(shape, step, peak=1.0, warmup=10, steps=100, final=final, decay=20, form=form)
        assert ours == pytest.approx(end, abs=1e-12)


@every_kind
def test_no_shape_jumps(shape, form):
    """The same course in ever finer steps: its largest change from one to the next vanishes."""
    jumps = []
    for finer in (1, 100):
        rates = course(
            shape, form, warmup=10 * finer, steps=100 * finer, peak=1.0, final=0.1, decay=20 * finer, beyond=5
        )
        jumps.append(max(abs(b - a) for a, b in pairwise(rates)))
    assert jumps[1] <= jumps[0] / 9  # in proportion, or as the root


@given(steps=st.integers(1, 10**6), share=st.floats(1e-6, 0.999))
def test_a_decay_below_one_is_a_share_of_the_steps(steps, share):
    taken = TrainSettings(
        steps=steps, decay=share, schedule="warmup-stable-decay", warmup=0, final_rate=0.1
    ).decay_steps
    assert 1 <= taken <= steps
    assert taken == 1 or abs(taken - share * steps) <= 0.5


def test_a_decay_from_one_on_is_in_steps():
    wanted = {"schedule": "warmup-stable-decay", "warmup": 10, "steps": 100}
    assert TrainSettings.parse(wanted | {"decay": 40}).decay_steps == 40
    assert TrainSettings.parse(wanted | {"decay": 1, "final_rate": 0.1}).decay_steps == 1
