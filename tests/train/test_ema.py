from __future__ import annotations

import math
import shutil
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.hub import load_model
from trifold.train import checkpoint
from trifold.train.optimizers import MovingAverage, newest_weight
from trifold.train.trainer import Trainer


@given(decay=st.floats(0.01, 0.9999), steps=st.integers(1, 40))
def test_it_is_the_weighted_mean_of_all_weights_so_far(decay, steps):
    master = torch.zeros(3)
    ours = MovingAverage(master, decay)
    seen = []
    for _ in range(steps):
        master.copy_(torch.randn(3))
        seen.append(master.double())
        ours.update()
    shares = torch.tensor([decay ** (steps - i) for i in range(1, steps + 1)], dtype=torch.float64)
    wanted = (torch.stack(seen) * shares[:, None]).sum(0) / shares.sum()
    torch.testing.assert_close(ours.mean.double(), wanted, rtol=1e-4, atol=1e-5)


@given(decay=st.floats(0.01, 0.9999))
def test_the_newest_share_falls_from_one_to_what_the_decay_leaves(decay):
    shares = [newest_weight(decay, step) for step in range(1, 200)]
    assert shares[0] == pytest.approx(1)
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert newest_weight(decay, 10**9) == pytest.approx(1 - decay, rel=1e-9)


def checked(run, steps):
    """By the book, with decay 0.9: after each of these steps the mean is that of the weights so far; the last one."""
    mean, weight = None, 0.0
    for step in steps:
        saved = checkpoint.load(run / "checkpoints" / f"step-{step:08d}")
        named = {name: value.double() for name, value in saved.weights.items()}
        mean = named if mean is None else {name: 0.9 * mean[name] + named[name] for name in named}
        weight = 0.9 * weight + 1
        for name, value in mean.items():
            torch.testing.assert_close(
                saved.optimizer[f"ema.{name}"].double(), value / weight, rtol=1e-4, atol=1e-6
            )
    return saved


@pytest.mark.slow
def test_the_average_is_validated_and_kept_and_the_run_learns_as_without_it(run):
    plain = run("plain", train__steps=6)
    averaged = run("averaged", train__steps=6, train__ema=0.9, train__save_every=1, train__keep_last=6)
    saved = checked(averaged.folder, range(1, 7))
    raw = checkpoint.load(plain.folder / "checkpoints" / "step-00000006").weights
    assert all(torch.equal(saved.weights[name], raw[name]) for name in raw)
    kept = dict(load_model(averaged.folder / "model")[0].named_parameters())
    assert all(torch.equal(kept[name], saved.optimizer[f"ema.{name}"]) for name in raw)
    assert not all(torch.equal(kept[name], raw[name]) for name in raw)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon", "adafactor"])
def test_updates_that_are_left_out_have_no_part_in_it(run, monkeypatch, tmp_path, state_of, optimizer):
    """So the random weights of the start have none where the first is left out; resumed or not."""
    learn = Trainer._backward

    def losing(self, batch, step, *more):
        loss = learn(self, batch, step, *more)
        return math.nan if step in (1, 4) else loss

    monkeypatch.setattr(Trainer, "_backward", losing)
    changes = {
        "train__optimizer": optimizer, "train__learning_rate": 0.01, "train__ema": 0.9,
        "train__on_nonfinite": "skip", "train__save_every": 1, "train__keep_last": 6,
    }  # fmt: skip
    run(train__steps=6, **changes)
    checked(tmp_path / "run", (2, 3, 5, 6))
    shutil.copytree(tmp_path / "run", tmp_path / "halfway")
    for step in (5, 6):
        shutil.rmtree(tmp_path / "halfway" / "checkpoints" / f"step-{step:08d}")
    run("halfway", resume="auto", train__steps=6, **changes)
    assert state_of(tmp_path / "halfway") == state_of(tmp_path / "run")
