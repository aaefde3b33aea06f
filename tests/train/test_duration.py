"""The time of a run is estimated before its first step."""

from __future__ import annotations

import pytest
import torch
from tests.train.runs import RecordingView

from trifold.recipe import load_recipe
from trifold.train import duration
from trifold.train.data import TrainingData, load_data
from trifold.train.work_time import WorkTime


@pytest.fixture
def data(tmp_path) -> TrainingData:
    (tmp_path / "a.txt").write_text("\n".join(f"line {n} of a text" for n in range(200)), "utf-8")
    values = {"data.train": str(tmp_path / "a.txt"), "data.holdout": 20, "batch.tokens": 256}
    return load_data(load_recipe("causal", values), tmp_path / "tokenizer", RecordingView())


def test_a_step_is_six_operations_for_each_weight_and_token(data):
    tokens = int(data.train.lengths.sum()) / len(data.plan(data.train, 0))
    config = data.config
    matrices = config.n_layers * 12 * config.d_model**2 + config.d_model * config.vocab_size
    assert duration.step_flops(data) == pytest.approx(6 * matrices * tokens, rel=0.1)


def test_the_duration_is_that_of_the_operations(data, monkeypatch):
    seconds = 2 * duration.SIZE**3 * duration.PRODUCTS / 1e10
    times = [WorkTime(seconds, seconds)]
    monkeypatch.setattr(duration, "time_products", lambda dtype: times)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(duration, "LAYER_SECONDS", 0.0)
    steps = int(7 * 60 * duration.EFFICIENCY * 1e10 / duration.step_flops(data))
    words = "about 7 minutes on the idle machine"
    assert duration.describe_duration(data, steps, torch.float32) == words
    times.append(WorkTime(50 * seconds, seconds))
    assert duration.describe_duration(data, steps, torch.float32) == f"{words}, which is busy now"
    times.pop()
    assert duration.describe_duration(data, 1, torch.float32) == "a few seconds"
    few = int(30 / (0.008 * data.config.n_layers))  # without their products
    monkeypatch.setattr(duration, "LAYER_SECONDS", 0.008)
    monkeypatch.setattr(duration, "step_flops", lambda data: 0.0)
    assert duration.describe_duration(data, few, torch.float32) == "about 30 seconds"
    monkeypatch.undo()
    monkeypatch.setattr(duration, "time_products", lambda dtype: times)
    monkeypatch.setattr(duration, "LAYER_SECONDS", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    limited = data.recipe.train.model_copy(update={"minutes": 2.0})
    object.__setattr__(data, "recipe", data.recipe.model_copy(update={"train": limited}))
    assert duration.describe_duration(data, steps, torch.float32) == (
        "about 2 minutes on the idle machine"
    )


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (0.1, "a few seconds"),
        (0.3, "about 20 seconds"),
        (0.9, "about a minute"),
        (1.2, "about a minute"),
        (7.4, "about 7 minutes"),
        (33, "about 35 minutes"),
        (200, "about 3.3 hours"),
    ],
)
def test_minutes_in_words(minutes, words):
    assert duration.in_words(minutes) == words


def test_products_are_timed_in_one_thread(monkeypatch):
    used = []
    monkeypatch.setattr(duration, "time_work", lambda *_: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        duration.time_products(torch.float32)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == [1] * duration.GROUPS
