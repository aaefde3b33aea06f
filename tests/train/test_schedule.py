from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.train.schedule import SHAPES, peak_rate, rate


@given(d_model=st.integers(1, 4096), warmup=st.integers(1, 20_000), step=st.integers(1, 400_000))
def test_inverse_sqrt_with_its_own_peak_is_equation_3_of_the_paper(d_model, warmup, step):
    ours = rate("inverse-sqrt", step, peak=peak_rate(d_model, warmup), warmup=warmup, steps=400_000)
    assert ours == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-12)


def test_the_base_model_of_the_paper_peaks_at_its_known_rate():
    assert peak_rate(512, 4000) == pytest.approx(6.9877e-4, rel=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@given(warmup=st.integers(0, 50), steps=st.integers(51, 500))
def test_every_shape_rises_to_its_peak_and_never_rises_again(shape, warmup, steps):
    rates = [rate(shape, step, peak=0.3, warmup=warmup, steps=steps) for step in range(1, steps + 1)]
    top = max(warmup, 1)
    if warmup:
        assert rates[warmup - 1] == pytest.approx(0.3)
        assert rates[:warmup] == pytest.approx([0.3 * step / warmup for step in range(1, warmup + 1)])
    assert max(rates) <= 0.3 * (1 + 1e-12)
    assert all(
        later <= earlier + 1e-15 for earlier, later in zip(rates[top - 1 :], rates[top:], strict=False)
    )
    assert min(rates) >= 0


@given(warmup=st.integers(0, 50), steps=st.integers(60, 500), share=st.floats(0, 1))
def test_each_shape_after_the_warm_up_is_its_formula(warmup, steps, share):
    step = max(1, warmup, round(warmup + share * (steps - warmup)))
    done = (step - warmup) / (steps - warmup)
    formulas = {
        "inverse-sqrt": (max(warmup, 1) / step) ** 0.5,
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "constant": 1.0,
    }
    assert set(formulas) == set(SHAPES)
    for shape, share_of_peak in formulas.items():
        ours = rate(shape, step, peak=2.0, warmup=warmup, steps=steps)
        assert ours == pytest.approx(2 * share_of_peak, abs=1e-9)


@pytest.mark.parametrize(("shape", "end"), [("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)])
def test_the_last_step_ends_where_the_shape_ends_and_going_on_stays_there(shape, end):
    for step in (100, 150):
        assert rate(shape, step, peak=1.0, warmup=10, steps=100) == pytest.approx(end, abs=1e-12)
