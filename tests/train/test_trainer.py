from __future__ import annotations

import sys
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from tests.train.runs import TINY, values_of
from torch import nn
from torch.nn import functional as F

from trifold.errors import CheckpointError, SettingsError
from trifold.fast.int8_training import int8_training_obstacle
from trifold.folders import named
from trifold.jsonfiles import read_json
from trifold.recipe import TrainSettings, load_recipe
from trifold.train.data import load_data
from trifold.train.device import Machine
from trifold.train.flat_weights import FlatWeights
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.optimizers import STATE_KINDS
from trifold.train.trainer import Trainer

CPU = torch.device("cpu")
RATES = {"adam": 0.001, "adamw": 0.001, "adafactor": 0.01, "muon": 0.002, "sgd": 0.02}
every_optimizer = pytest.mark.parametrize("optimizer", STATE_KINDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    recipe = load_recipe("smoke", TINY | {"model.dropout": 0.0, "model.n_layers": 2})
    return load_data(recipe, tmp_path_factory.mktemp("tokenizer"), View())


@pytest.fixture
def new_trainer(data):
    def new_trainer(optimizer="adam", *, dtype=torch.float32, workers=1, **changes):
        values = {
            "optimizer": optimizer,
            "learning_rate": RATES[optimizer],
            "weight_decay": 0.01,
            "warmup": 0,
        }
        settings = data.recipe.train.model_copy(update=values | {"schedule": "constant"} | changes)
        return Trainer(new_model(data), data.objective, settings, Machine(CPU, dtype, workers))

    return new_trainer


@pytest.fixture
def update(data):
    """Update a trainer with the rows between the given places, a micro-batch each."""

    def update(trainer, step, *places):
        batches = [data.objective.batch(data.train, np.arange(a, b)) for a, b in pairwise(places)]
        return trainer.update(batches, step)

    return update


# --- one update -----------------------------------------------------------------------------------


@pytest.fixture
def gradient_of(data, new_trainer):
    """The gradient that the optimizer receives for these micro-batches, each an array of rows."""

    def gradient_of(*rows, **changes):
        received = []
        trainer = new_trainer(**changes)
        trainer.optimizer.step = lambda gradient, rate: received.append(gradient.clone())
        trainer.update([data.objective.batch(data.train, each) for each in rows], 1)
        trainer.close()
        return received[0]

    return gradient_of


def test_gradient_is_that_of_the_mean_over_tokens(data, gradient_of):
    rows = np.arange(20, 30)
    model = new_model(data).train()
    loss = data.objective.loss(model, data.objective.batch(data.train, rows))["tokens"]
    (loss.sum / loss.count).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(gradient_of(rows), expected, rtol=1e-5, atol=1e-8)


def test_accumulated_micro_batches_have_the_gradient_of_one_batch(gradient_of):
    rows = np.arange(60, 75)
    whole = gradient_of(rows)
    for cut in (1, 4, 14):  # ragged: the parts differ in rows, tokens and padding
        parts = gradient_of(rows[:cut], rows[cut:])
        assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(gradient_of(rows[:14]), whole, rtol=1e-4, atol=1e-7)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_have_the_gradient_of_one_and_are_deterministic(gradient_of, workers):
    rows = (
        np.arange(60, 75),
        np.arange(20, 22),
        np.arange(22, 40),
        np.arange(80, 81),
        np.arange(90, 99),
    )
    one, several, again = (gradient_of(*rows, workers=number) for number in (1, workers, workers))
    assert torch.allclose(several, one, rtol=1e-5, atol=1e-8)
    assert torch.equal(several, again)


def test_error_in_a_worker_is_raised(gradient_of):
    with pytest.raises(IndexError):
        gradient_of(np.arange(4), np.array([10**6]), workers=2)


def test_clipping_shortens_the_gradient_and_keeps_its_direction(gradient_of):
    rows = np.arange(20, 30)
    free = gradient_of(rows)
    norm = float(free.norm())
    assert torch.allclose(gradient_of(rows, clip=norm / 4), free / 4, rtol=1e-5)
    assert torch.equal(gradient_of(rows, clip=norm * 2), free)


# --- every optimizer ------------------------------------------------------------------------------


def test_recipe_accepts_every_optimizer():
    assert set(get_args(TrainSettings.model_fields["optimizer"].annotation)) == set(STATE_KINDS)


@every_optimizer
def test_optimizer_state_has_the_kinds_of_the_table_for_every_parameter(new_trainer, optimizer):
    trainer = new_trainer(optimizer)
    state = trainer.optimizer.state
    assert {name.partition(".")[0] for name in state} == STATE_KINDS[optimizer]
    assert {name.partition(".")[2] for name in state} == {"", *trainer.weights.names}


@pytest.mark.slow
@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_trainer_continues_bit_by_bit(new_trainer, update, optimizer, dtype):
    one = new_trainer(optimizer, dtype=dtype, ema=0.9)
    for step in (1, 2, 3):
        update(one, step, 10 * step, 10 * step + 8)
    weights, moments = ({n: v.clone() for n, v in part.items()} for part in one.state())
    two = new_trainer(optimizer, dtype=dtype, ema=0.9)
    two.restore(weights, moments)
    for step in (4, 5):
        for trainer in (one, two):
            update(trainer, step, 10 * step, 10 * step + 8)
    for ours, theirs in zip(two.state(), one.state(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not all(torch.equal(weights[name], value) for name, value in one.state()[0].items())


@every_optimizer
def test_optimizer_does_not_change_the_gradient(new_trainer, optimizer):
    trainer = new_trainer(optimizer)
    gradient = torch.randn_like(trainer.weights.master)
    before = gradient.clone()
    trainer.optimizer.step(gradient, 0.01)
    assert torch.equal(gradient, before)


@pytest.mark.slow
@every_optimizer
def test_three_updates_with_accumulation_equal_those_without(new_trainer, update, optimizer):
    """As closely as the order of additions allows; one row less has ten times the effect."""

    def change(*cuts, size=18):
        trainer = new_trainer(optimizer, epsilon=1e-7)
        start = trainer.weights.master.clone()
        for step in (1, 2, 3):
            first = 20 * step
            update(trainer, step, first, *(first + cut for cut in cuts), first + size)
        return trainer.weights.master - start

    whole = change()
    for cuts in ((9,), (1, 2, 11)):
        assert float((change(*cuts) - whole).norm()) < 2e-3 * float(whole.norm())
    assert float((change(size=17) - whole).norm()) > 2e-2 * float(whole.norm())


@pytest.mark.slow
@every_optimizer
def test_loss_of_one_batch_falls(new_trainer, update, optimizer):
    trainer = new_trainer(optimizer, learning_rate=5 * RATES[optimizer])
    losses = [update(trainer, step, 0, 12).loss for step in range(1, 31)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("saved", "current"), [("adam", "muon"), ("adafactor", "adamw"), ("muon", "sgd")]
)
def test_state_of_another_optimizer_is_rejected_before_anything_changes(
    new_trainer, saved, current
):
    weights, moments = new_trainer(saved).state()
    other = new_trainer(current)
    before = other.weights.master.clone()
    shifted = {name: value + 1 for name, value in weights.items()}
    with pytest.raises(
        CheckpointError, match=rf"state of {saved}.*train\.optimizer is {current}.*`out`"
    ):
        other.restore(shifted, moments)
    assert torch.equal(other.weights.master, before)


def test_state_without_the_moving_average_is_rejected(new_trainer):
    weights, moments = new_trainer().state()
    with pytest.raises(CheckpointError, match=r"for other parameters.*such as ema\."):
        new_trainer(ema=0.9).restore(weights, moments)


# --- int8 training --------------------------------------------------------------------------------

WIDE = {"train__device": "cpu", "model__d_model": 256, "model__d_ff": 256, "batch__tokens": 2048}
INT8 = WIDE | {"train__precision": "int8"}
SHORT = {"train__steps": 6, "train__save_every": 6}

requires_int8 = pytest.mark.skipif(
    int8_training_obstacle(CPU) != "", reason="int8 training is not available on this machine"
)


@pytest.fixture
def matmuls(monkeypatch) -> list[tuple[int, ...]]:
    """The sizes of all int8 matmuls."""
    sizes: list[tuple[int, ...]] = []
    real = torch._int_mm
    monkeypatch.setattr(
        torch, "_int_mm", lambda x, y: sizes.append((*x.shape, y.shape[1])) or real(x, y)
    )
    return sizes


def read_precision(folder):
    return read_json(named(folder / "environment.json"))["precision"]


@pytest.mark.slow
@requires_int8
def test_int8_training_uses_int8_in_both_passes_and_reports_it(run, recorder, matmuls):
    outcome = run(view=recorder, **INT8, train__steps=2, train__warmup=1)
    layers = 4 + 2 + 8 + 2  # of one block on each side
    for part in (
        "+int8, weights in float32",
        f"parameters, {layers} layers in int8;",
    ):
        assert any(part in line for line in recorder.lines), part
    assert read_precision(outcome.folder).endswith("+int8")
    assert matmuls and len(matmuls) % 3 == 0  # y, dx and dW of each chunk


@pytest.mark.slow
@requires_int8
@pytest.mark.parametrize("workers", [1, 2])
def test_losses_of_int8_training_are_close_to_those_without(run, matmuls, workers):
    changes = WIDE | SHORT | {"train__workers": workers, "model__dropout": 0.0}
    plain = run(**changes, train__precision="auto", folder="plain")
    assert not matmuls
    int8 = run(**changes, train__precision="int8", folder="int8")
    assert matmuls
    expected, losses = (
        [loss for _, loss in values_of(each.folder, "train/loss")] for each in (plain, int8)
    )
    assert expected[-1] < expected[0] - 0.1
    assert losses == pytest.approx(expected, rel=0.02) and losses != expected


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["for want of numba", "for want of AVX-512 VNNI"])
def test_unavailable_int8_training_is_reported_and_replaced(
    run, recorder, monkeypatch, matmuls, reason
):
    monkeypatch.setattr(
        sys.modules["trifold.train.device"], "int8_training_obstacle", lambda device: reason
    )
    outcome = run(view=recorder, **INT8, train__steps=2, train__warmup=1)
    assert not matmuls
    assert any(f" without int8 ({reason})" in line for line in recorder.lines)
    assert "int8" not in read_precision(outcome.folder)


def test_int8_and_compiled_blocks_are_incompatible():
    with pytest.raises(
        SettingsError, match=r"compile: blocks does not support precision: int8; set precision"
    ):
        load_recipe("smoke", {"train.precision": "int8", "train.compile": "blocks"})


# --- flat weights ---------------------------------------------------------------------------------


class Net(nn.Module):
    """Two matrices, one used twice, and buffers of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.table = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("positions", torch.arange(4), persistent=False)

    def forward(self, x):
        return F.relu(self.inner(x * self.scale)) @ self.table @ self.table.t()


def test_parameters_become_views_of_one_vector():
    net = Net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    weights = FlatWeights(net, torch.float32)
    assert weights.master.shape == (sum(p.numel() for p in before.values()),)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().data_ptr() == weights.master.untyped_storage().data_ptr()
    weights.master.fill_(3.0)
    assert all(bool((parameter == 3).all()) for parameter in net.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_is_the_sum_of_those_of_autograd(dtype):
    net, plain = Net(), Net()
    plain.load_state_dict(net.state_dict())
    if dtype is torch.bfloat16:
        plain = plain.to(dtype)
    weights = FlatWeights(net, dtype)
    expected = torch.zeros_like(weights.master)
    for _ in range(3):
        x = torch.randn(2, 4, dtype=dtype)
        net(x).square().sum().backward()
        weights.collect()
        gradients = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
        expected += torch.cat([gradient.float().flatten() for gradient in gradients])
    found = weights.take_gradient()
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)


def test_take_gradient_requires_a_new_collect():
    net = Net()
    weights = FlatWeights(net, torch.float32)
    x = torch.randn(2, 4)
    net(x).sum().backward()
    weights.collect()
    first = weights.take_gradient().clone()
    net(x).sum().backward()
    weights.collect()
    assert torch.equal(weights.take_gradient(), first)
    with pytest.raises(AssertionError):
        weights.take_gradient()


def test_gradients_stay_views_after_several_backward_passes():
    net = Net()
    weights = FlatWeights(net, torch.bfloat16)
    addresses = [parameter.grad.data_ptr() for parameter in net.parameters()]
    for _ in range(2):
        net(torch.randn(2, 4, dtype=torch.bfloat16)).sum().backward()
        weights.collect()
    assert [parameter.grad.data_ptr() for parameter in net.parameters()] == addresses


def test_bf16_weights_are_the_rounded_master_weights_which_keep_small_steps():
    net = Net()
    weights = FlatWeights(net, torch.bfloat16)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.bfloat16}
    start = weights.master.clone()
    for _ in range(64):  # far below the precision of bf16 at 1
        weights.master += 2.0**-14
        weights.publish()
    named = weights.named(weights.master)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, named[name].to(torch.bfloat16))
    assert torch.allclose(weights.master, start + 2.0**-8)


def test_floating_point_buffers_follow_the_dtype():
    net = Net()
    FlatWeights(net, torch.bfloat16)
    assert net.scale.dtype is torch.bfloat16
    assert net.positions.dtype is torch.int64


def test_named_returns_views_in_the_order_of_the_vector():
    net = Net()
    weights = FlatWeights(net, torch.float32)
    vector = torch.randn_like(weights.master)
    named = weights.named(vector)
    assert {name: value.shape for name, value in named.items()} == {
        name: parameter.shape for name, parameter in net.named_parameters()
    }
    assert torch.equal(torch.cat([view.flatten() for view in named.values()]), vector)


def test_tied_parameter_is_stored_once():
    net = Net()
    net.again = net.table
    assert FlatWeights(net, torch.float32).names.count("table") == 1
