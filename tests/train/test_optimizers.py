from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.train.optimizer_oracles import (
    copy_parameters,
    decay_groups,
    draw_gradients,
    make_optimizer,
    step_all,
)

from trifold.nn import ModelConfig, Transformer
from trifold.recipe import FINITE_SCHEDULES, TrainSettings
from trifold.train.adafactor import DECAY_EXPONENT, MIN_RMS, MIN_SQUARE
from trifold.train.adam import decay_group, is_hidden_matrix
from trifold.train.moving_average import MovingAverage
from trifold.train.schedules import learning_rate, peak_rate

RATES = [0.01 / (1 + step % 7) for step in range(50)]


def assert_close_by_name(weights, expected, *, rtol, atol):
    for name, value in weights.named(weights.master).items():
        torch.testing.assert_close(value, expected[name].detach().to(value), rtol=rtol, atol=atol)


# --- parameters with weight decay -----------------------------------------------------------------

SMALL = {
    "vocab_size": 13,
    "max_positions": 9,
    "d_model": 8,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 12,
}
MODELS = {
    "encoder-decoder": {},
    "two vocabularies, every bias": {
        "target_vocab_size": 7,
        "tie_lm_head": False,
        "lm_head_bias": True,
        "attention_bias": True,
    },
    "relative positions, gated": {"positions": "relative", "gated": True, "norm": "rms"},
    "encoder with heads": {
        "shape": "encoder",
        "heads": ("lm", "pooler", "next-sentence", "token"),
        "positions": "learned",
        "n_token_types": 2,
        "d_embedding": 6,
        "lm_head_transform": "gelu",
    },
    "images": {
        "shape": "encoder",
        "image_size": (8, 8),
        "patch_size": (4, 4),
        "max_positions": 5,
        "heads": ("sequence",),
    },
}


@pytest.mark.parametrize("values", MODELS.values(), ids=MODELS)
def test_decay_groups_are_matrices_everything_or_the_projections_of_blocks(values):
    model = Transformer(ModelConfig.parse(SMALL | values))
    named = dict(model.named_parameters())
    matrices = decay_group(named, None)
    assert matrices == decay_group(named, "matrices")
    assert {name for name, p in named.items() if p.dim() == 1} == named.keys() - matrices
    assert decay_group(named, "everything") == named.keys()
    blocks = [stack.blocks for stack in (model.encoder, model.decoder) if stack is not None]
    of_blocks = {id(p) for each in blocks for p in each.parameters() if p.dim() == 2}
    hidden = decay_group(named, "hidden")
    assert hidden == {name for name, p in named.items() if id(p) in of_blocks}
    assert hidden and hidden < matrices


def test_biases_with_several_axes_are_biases():
    assert decay_group({"decoder.blocks.0.bias": torch.zeros(2, 4)}, "matrices") == frozenset()
    assert not is_hidden_matrix("decoder.blocks.0.bias", torch.zeros(2, 4))


# --- Adam and AdamW -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("on", "decays"),
    [
        (None, lambda name, value: value.dim() >= 2),
        ("matrices", lambda name, value: value.dim() >= 2),
        ("everything", lambda name, value: True),
        ("hidden", lambda name, value: name.endswith("_proj.weight")),
    ],
)
def test_fifty_steps_of_adamw_equal_pytorch(weight_decay, on, decays):
    weights, ours = make_optimizer(
        "adamw", weight_decay=weight_decay, weight_decay_on=on, beta2=0.95, epsilon=1e-8
    )
    theirs = copy_parameters(weights)
    groups = decay_groups(theirs, weight_decay, decays)
    library = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    step_all(weights, ours, [(library, theirs)], RATES)
    assert_close_by_name(weights, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fifty_steps_of_adam_equal_the_formulas_of_the_papers(optimizer, weight_decay):
    """Kingma & Ba 2015, algorithm 1, with the weight decay of Loshchilov & Hutter 2019, algorithm
    2, in float64.
    """
    on = {"weight_decay_on": "everything"} if optimizer == "adamw" else {}
    weights, ours = make_optimizer(
        optimizer, weight_decay=weight_decay, beta1=0.8, beta2=0.98, epsilon=1e-3, **on
    )
    w = weights.master.double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, (gradient, rate) in enumerate(
        zip(draw_gradients(weights, 50), RATES, strict=True), start=1
    ):
        g = gradient.double()
        m, v = 0.8 * m + 0.2 * g, 0.98 * v + 0.02 * g**2
        w = w - rate * (m / (1 - 0.8**t) / ((v / (1 - 0.98**t)).sqrt() + 1e-3) + weight_decay * w)
        ours.step(gradient, rate)
    torch.testing.assert_close(weights.master.double(), w, rtol=1e-5, atol=1e-6)
    for kind, expected in (("exp_avg", m), ("exp_avg_sq", v)):
        for name, value in weights.named(expected).items():
            found = ours.state[f"{kind}.{name}"].double()
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)


# --- SGD ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_fifty_steps_of_sgd_equal_pytorch(momentum, nesterov, weight_decay):
    options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    weights, ours = make_optimizer("sgd", **options)
    theirs = copy_parameters(weights)
    library = torch.optim.SGD(theirs.values(), lr=1.0, foreach=False, **options)
    step_all(weights, ours, [(library, theirs)], RATES)
    assert_close_by_name(weights, theirs, rtol=1e-5, atol=1e-6)
    if momentum:
        for name, parameter in theirs.items():
            buffer = library.state[parameter]["momentum_buffer"]
            torch.testing.assert_close(ours.state[f"momentum.{name}"], buffer)


def test_weight_decay_of_sgd_applies_to_its_group():
    weights, ours = make_optimizer("sgd", weight_decay=0.1, weight_decay_on="matrices")
    theirs = copy_parameters(weights)
    groups = decay_groups(theirs, 0.1, lambda name, value: value.dim() >= 2)
    library = torch.optim.SGD(groups, lr=1.0, momentum=0.95, foreach=False)
    step_all(weights, ours, [(library, theirs)], RATES[:9])
    assert_close_by_name(weights, theirs, rtol=1e-5, atol=1e-6)


# --- Adafactor ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fifty_steps_of_adafactor_equal_pytorch(weight_decay):
    weights, ours = make_optimizer("adafactor", weight_decay=weight_decay)
    theirs = copy_parameters(weights)
    groups = decay_groups(theirs, weight_decay, lambda name, value: value.dim() >= 2)
    library = torch.optim.Adafactor(groups, eps=(1e-15, MIN_RMS), d=1.0, foreach=False)
    # All rates are below 1/√t, where PyTorch does not limit them.
    step_all(weights, ours, [(library, theirs)], [5 * rate for rate in RATES])
    assert_close_by_name(weights, theirs, rtol=1e-4, atol=1e-6)


def adafactor_of_the_paper(weight, gradients, rates, *, relative, clip):
    """Algorithms 4 and 6 of the paper, with row and column sums, in float64."""
    x = weight.double().numpy().copy()
    rows = columns = squares = 0.0
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = gradient.double().numpy()
        beta = 1 - t**DECAY_EXPONENT
        v = g**2 + MIN_SQUARE
        if x.ndim == 2:
            rows = beta * rows + (1 - beta) * v.sum(1)
            columns = beta * columns + (1 - beta) * v.sum(0)
            u = g / np.sqrt(np.outer(rows, columns) / rows.sum())
        else:
            squares = beta * squares + (1 - beta) * v
            u = g / np.sqrt(squares)
        u /= max(1.0, np.sqrt((u**2).mean()) / clip)
        size = max(MIN_RMS, np.sqrt((x**2).mean())) if relative else 1.0
        x -= rate * size * u
    return torch.from_numpy(x)


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_fifty_steps_of_adafactor_equal_the_paper(relative, clip):
    weights, ours = make_optimizer("adafactor", relative_step=relative, update_clip=clip)
    rates, gradients = [5 * rate for rate in RATES], draw_gradients(weights, 50)
    expected = {
        name: adafactor_of_the_paper(
            value, [weights.named(g)[name] for g in gradients], rates, relative=relative, clip=clip
        )
        for name, value in weights.named(weights.master).items()
    }
    step_all(weights, ours, [], rates)
    assert_close_by_name(weights, expected, rtol=1e-4, atol=1e-5)


def test_adafactor_stores_rows_and_columns_of_a_matrix():
    weights, ours = make_optimizer("adafactor")
    state = ours.state
    for name, value in weights.named(weights.master).items():
        if value.dim() == 2:
            n, m = value.shape
            assert (state[f"row.{name}"].shape, state[f"column.{name}"].shape) == ((n, 1), (1, m))
        else:
            assert state[f"square.{name}"].shape == value.shape
    assert sum(value.numel() for value in state.values()) < 0.4 * weights.master.numel()


def test_adafactor_stays_finite_with_zero_and_huge_gradients():
    weights, ours = make_optimizer("adafactor")
    before = copy_parameters(weights)
    gradient = torch.zeros_like(weights.master)
    for value in weights.named(gradient).values():
        value[0] = 1e12
    for _ in range(3):
        ours.step(gradient, 0.01)
    assert bool(weights.master.isfinite().all())
    for name, value in weights.named(weights.master).items():
        assert torch.equal(value[1:], before[name][1:])
        assert not torch.equal(value[0], before[name][0])


# --- moving average -------------------------------------------------------------------------------


@given(decay=st.floats(0.01, 0.9999), steps=st.integers(1, 40))
def test_moving_average_is_the_weighted_mean_of_all_weights(decay, steps):
    master = torch.zeros(3)
    ours = MovingAverage(master, decay)
    seen = []
    for _ in range(steps):
        master.copy_(torch.randn(3))
        seen.append(master.double())
        ours.update()
    shares = torch.tensor([decay ** (steps - i) for i in range(1, steps + 1)], dtype=torch.float64)
    expected = (torch.stack(seen) * shares[:, None]).sum(0) / shares.sum()
    torch.testing.assert_close(ours.mean.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@given(decay=st.floats(0.01, 0.9999))
def test_share_of_the_newest_weights_falls_from_one_to_one_minus_decay(decay):
    average = MovingAverage(torch.ones(1, dtype=torch.float64), decay)

    def share_of_newest(updates):
        average.mean.zero_()
        average.updates = updates - 1
        average.update()
        return float(average.mean)

    shares = [share_of_newest(updates) for updates in range(1, 200)]
    assert shares[0] == pytest.approx(1)
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert share_of_newest(10**9) == pytest.approx(1 - decay, rel=1e-9)


# --- learning rate --------------------------------------------------------------------------------

SHAPES = get_args(TrainSettings.model_fields["schedule"].annotation)
KINDS = [*((shape, "linear") for shape in SHAPES), ("warmup-stable-decay", "1-sqrt")]
every_kind = pytest.mark.parametrize(("shape", "form"), KINDS)


def rate(shape, step, *, peak, warmup, steps, final=0.0, decay=1, form="linear"):
    settings = TrainSettings.model_construct(
        schedule=shape, warmup=warmup, steps=steps, final_rate=final, decay=decay, decay_form=form
    )
    return learning_rate(settings, step, peak)


def rates_of(shape, form, *, warmup, steps, peak=0.3, final=0.0, decay=20, beyond=0):
    """The rates of updates 1, 2, …"""
    return [
        rate(
            shape, step, peak=peak, warmup=warmup, steps=steps, final=final, decay=decay, form=form
        )
        for step in range(1, steps + beyond + 1)
    ]


@given(d_model=st.integers(1, 4096), warmup=st.integers(1, 20_000), step=st.integers(1, 400_000))
def test_inverse_sqrt_equals_equation_3_of_the_paper(d_model, warmup, step):
    ours = rate("inverse-sqrt", step, peak=peak_rate(d_model, warmup), warmup=warmup, steps=400_000)
    assert ours == pytest.approx(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-12)


def test_peak_rate_of_the_base_model_of_the_paper():
    assert peak_rate(512, 4000) == pytest.approx(6.9877e-4, rel=1e-4)


@given(step=st.integers(1, 100_000))
def test_inverse_sqrt_equals_the_rates_of_the_adafactor_paper(step):
    ours = rate("inverse-sqrt", step, peak=0.01, warmup=10_000, steps=100_000)
    assert ours == pytest.approx(min(1e-6 * step, step**-0.5), rel=1e-12)


@pytest.mark.slow
@every_kind
@settings(max_examples=25)
@given(
    warmup=st.integers(0, 50), steps=st.integers(71, 500), final=st.sampled_from([0.0, 0.1, 1.0])
)
def test_every_schedule_rises_to_its_peak_and_never_rises_again(shape, form, warmup, steps, final):
    final = final if shape in FINITE_SCHEDULES else 0.0
    rates = rates_of(shape, form, warmup=warmup, steps=steps, final=final, beyond=30)
    top = max(warmup, 1)
    if warmup:
        assert rates[warmup - 1] == pytest.approx(0.3)
        assert rates[:warmup] == pytest.approx(
            [0.3 * step / warmup for step in range(1, warmup + 1)]
        )
    assert max(rates) <= 0.3 * (1 + 1e-12)
    assert all(
        later <= earlier + 1e-15
        for earlier, later in zip(rates[top - 1 :], rates[top:], strict=False)
    )
    assert min(rates[top - 1 :]) >= 0.3 * final - 1e-15


@given(warmup=st.integers(0, 50), steps=st.integers(70, 500), share=st.floats(0, 1))
def test_every_schedule_equals_its_formula_after_the_warmup(warmup, steps, share):
    step = max(1, warmup, round(warmup + share * (steps - warmup)))
    done = (step - warmup) / (steps - warmup)
    decayed = max(0.0, (step - (steps - 20)) / 20)
    formulas = {
        ("inverse-sqrt", "linear"): (max(warmup, 1) / step) ** 0.5,
        ("linear", "linear"): 1 - done,
        ("cosine", "linear"): (1 + math.cos(math.pi * done)) / 2,
        ("constant", "linear"): 1.0,
        ("warmup-stable-decay", "linear"): 1 - decayed,
        ("warmup-stable-decay", "1-sqrt"): 1 - decayed**0.5,
    }
    assert set(formulas) == set(KINDS)
    for (shape, form), factor in formulas.items():
        ours = rate(shape, step, peak=2.0, warmup=warmup, steps=steps, decay=20, form=form)
        assert ours == pytest.approx(2 * factor, abs=1e-9)
        with_floor = rate(
            shape, step, peak=2.0, warmup=warmup, steps=steps, final=0.25, decay=20, form=form
        )
        assert with_floor == pytest.approx(0.5 + 1.5 * factor, abs=1e-9)


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(("shape", "form"), [kind for kind in KINDS if kind[0] != "inverse-sqrt"])
def test_schedule_ends_at_the_last_step_and_stays_there(shape, form, final):
    end = 1.0 if shape == "constant" else final
    for step in (100, 150):
        ours = rate(shape, step, peak=1.0, warmup=10, steps=100, final=final, decay=20, form=form)
        assert ours == pytest.approx(end, abs=1e-12)


@pytest.mark.slow
@every_kind
def test_schedules_are_continuous(shape, form):
    """With 100 times as many steps, the largest change between two steps is smaller."""
    jumps = []
    for finer in (1, 100):
        rates = rates_of(
            shape,
            form,
            warmup=10 * finer,
            steps=100 * finer,
            peak=1.0,
            final=0.1,
            decay=20 * finer,
            beyond=5,
        )
        jumps.append(max(abs(b - a) for a, b in pairwise(rates)))
    assert jumps[1] <= jumps[0] / 9  # proportional, or as the square root


@given(steps=st.integers(1, 10**6), share=st.floats(1e-6, 0.999))
def test_decay_below_one_is_a_share_of_the_steps(steps, share):
    settings = TrainSettings(
        steps=steps, decay=share, schedule="warmup-stable-decay", warmup=0, final_rate=0.1
    )
    assert 1 <= settings.decay_steps <= steps
    assert settings.decay_steps == 1 or abs(settings.decay_steps - share * steps) <= 0.5


def test_decay_from_one_on_is_a_number_of_steps():
    settings = {"schedule": "warmup-stable-decay", "warmup": 10, "steps": 100}
    assert TrainSettings.parse(settings | {"decay": 40}).decay_steps == 40
    assert TrainSettings.parse(settings | {"decay": 1, "final_rate": 0.1}).decay_steps == 1
