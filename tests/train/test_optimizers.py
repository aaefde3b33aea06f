"""What all optimisers have in common: their state, their errors, and what a Trainer makes of them."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch

from trifold.errors import CheckpointError, SettingsError
from trifold.recipe import TrainSettings, load_recipe
from trifold.train.data import load_data
from trifold.train.device import Machine
from trifold.train.monitor import View
from trifold.train.optimizers import STATE_KINDS
from trifold.train.trainer import Trainer

pytestmark = pytest.mark.slow

RATES = {"adam": 0.001, "adamw": 0.001, "adafactor": 0.01, "muon": 0.002}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny):
    recipe = load_recipe("smoke", tiny | {"model.dropout": 0.0, "model.n_layers": 2})
    return load_data(recipe, tmp_path_factory.mktemp("tokenizer"), View())


def new_trainer(prepared, optimizer, *, dtype=torch.float32, **changes):
    values = {"optimizer": optimizer, "learning_rate": RATES[optimizer], "weight_decay": 0.01, "warmup": 0}
    settings = prepared.recipe.train.model_copy(update=values | {"schedule": "constant"} | changes)
    return Trainer(
        prepared.new_model(), prepared.objective, settings, Machine(torch.device("cpu"), dtype, workers=1)
    )


def batch(prepared, start, stop):
    return prepared.objective.batch(prepared.train, np.arange(start, stop))


def test_the_recipe_knows_them_all():
    assert set(get_args(TrainSettings.model_fields["optimizer"].annotation)) == set(STATE_KINDS)


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_kinds_of_state_are_what_the_table_says_and_names_the_models(prepared, optimizer):
    trainer = new_trainer(prepared, optimizer)
    state = trainer.optimizer.state
    assert {name.partition(".")[0] for name in state} == STATE_KINDS[optimizer]
    assert {name.partition(".")[2] for name in state} == {"", *trainer.weights.names}


@pytest.mark.parametrize("optimizer", STATE_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_learners_go_on_bit_by_bit(prepared, optimizer, dtype):
    one = new_trainer(prepared, optimizer, dtype=dtype, ema=0.9)
    for step in (1, 2, 3):
        one.update([batch(prepared, 10 * step, 10 * step + 8)], step)
    weights, moments = ({n: v.clone() for n, v in part.items()} for part in one.state())
    two = new_trainer(prepared, optimizer, dtype=dtype, ema=0.9)
    two.restore(weights, moments)
    for step in (4, 5):
        for trainer in (one, two):
            trainer.update([batch(prepared, 10 * step, 10 * step + 8)], step)
    for ours, theirs in zip(two.state(), one.state(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not all(torch.equal(weights[name], value) for name, value in one.state()[0].items())


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_the_gradient_is_left_alone(prepared, optimizer):
    trainer = new_trainer(prepared, optimizer)
    gradient = torch.randn_like(trainer.weights.master)
    before = gradient.clone()
    trainer.optimizer.step(gradient, 0.01)
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_accumulated_batches_learn_what_one_big_batch_does(prepared, optimizer):
    """Three updates in parts and whole: as near as the order of additions allows, and far from learning less."""

    def learnt(*cuts):
        trainer = new_trainer(prepared, optimizer, epsilon=1e-7)
        start = trainer.weights.master.clone()
        for step in (1, 2, 3):
            first = 20 * step
            places = [first, *(first + cut for cut in cuts), first + 18]
            trainer.update([batch(prepared, a, b) for a, b in pairwise(places)], step)
        return trainer.weights.master - start

    whole = learnt()
    for cuts in ((9,), (1, 2, 11)):
        assert float((learnt(*cuts) - whole).norm()) < 2e-3 * float(whole.norm())
    less = new_trainer(prepared, optimizer, epsilon=1e-7)
    start = less.weights.master.clone()
    for step in (1, 2, 3):
        less.update([batch(prepared, 20 * step, 20 * step + 17)], step)
    assert float((less.weights.master - start - whole).norm()) > 2e-2 * float(whole.norm())


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_a_few_updates_on_one_batch_learn_it(prepared, optimizer):
    trainer = new_trainer(prepared, optimizer, learning_rate=5 * RATES[optimizer])
    losses = [trainer.update([batch(prepared, 0, 12)], step).loss for step in range(1, 31)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("began", "goes_on"), [("adam", "muon"), ("adafactor", "adamw"), ("muon", "adam")])
def test_the_state_of_another_optimizer_is_refused_before_anything_is_touched(prepared, began, goes_on):
    weights, moments = new_trainer(prepared, began).state()
    other = new_trainer(prepared, goes_on)
    before = other.weights.master.clone()
    shifted = {name: value + 1 for name, value in weights.items()}
    with pytest.raises(CheckpointError, match=rf"state of {began}.*train\.optimizer is {goes_on}.*--out"):
        other.restore(shifted, moments)
    assert torch.equal(other.weights.master, before)


def test_a_state_without_its_average_is_refused(prepared):
    weights, moments = new_trainer(prepared, "adam").state()
    with pytest.raises(CheckpointError, match=r"for other parameters.*such as ema\."):
        new_trainer(prepared, "adam", ema=0.9).restore(weights, moments)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    run, interrupting, state_of, tmp_path, optimizer
):
    changes = {
        "train__optimizer": optimizer,
        "train__learning_rate": RATES[optimizer],
        "train__weight_decay": 0.01,
        "train__ema": 0.8,
        "train__clip": 1.0,
        "train__accumulate": 2,
        "train__schedule": "warmup-stable-decay",
        "train__decay": 0.5,
    }
    run("whole", **changes)
    for stop in (5, 6):
        run(view=interrupting(stop), resume="auto", **changes)
    run(resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert [key for key in theirs if ours[key] != theirs[key]] == []


def test_resuming_with_another_optimizer_is_refused_and_named(run):
    run(train__steps=3, train__warmup=2)
    with pytest.raises(SettingsError, match=r"train\.optimizer.*--out"):
        run(resume="auto", train__steps=3, train__warmup=2, train__optimizer="muon")
