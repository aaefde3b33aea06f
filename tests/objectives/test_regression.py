"""Regression: the model learns standardized numbers, and the saved one predicts the user's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.models import ONE_LAYER, add_noise
from tests.train.runs import InterruptingView, RecordingView, values_of

import trifold
from trifold.data import Rows
from trifold.errors import DataError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.classify import Classify, ClassifySettings, Scale
from trifold.pipeline import Pipeline
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train import checkpoint
from trifold.train.data import load_data

WORDS = "red green blue old new big small fast slow dark".split()
TEXTS = [f"{one} {two}" for one in WORDS for two in WORDS[::3]]
NUMBERS = [WORDS.index(text.split()[0]) / 10 + (n % 3) / 20 for n, text in enumerate(TEXTS)]
SIZES = ONE_LAYER | {
    "shape": "encoder", "max_positions": 16, "positions": "learned", "n_token_types": 2,
    "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(kind="word", min_frequency=1, special=["cls", "sep", "mask"])
    return train_tokenizer(TEXTS, settings)


def config_of(tokenizer, **changes):
    ids = {f"{name}_id": tokenizer.required(name) for name in ("pad", "bos", "eos")}
    heads = {"heads": ["pooler", "sequence"], "classifier_input": "pooler"}
    labels = {"problem_type": "regression", "n_labels": 1, "label_names": ("score",)}
    return ModelConfig.parse(
        SIZES | {"vocab_size": tokenizer.vocab_size} | ids | heads | labels | changes
    )


def rows_of(numbers):
    columns = {"text": TEXTS, "pair": [None] * len(TEXTS), "label": [str(n) for n in numbers]}
    return Rows(columns, list(range(2, len(TEXTS) + 2)))


def train(tokenizer, numbers, steps=20):
    """The outputs of a model that has learned the numbers, saved and loaded, and its losses."""
    config = config_of(tokenizer)
    torch.manual_seed(1)
    model, rows = Transformer(config), rows_of(numbers)
    task = Classify(ClassifySettings(), tokenizer, config, train=rows)
    batch = task.batch(task.examples(rows), np.arange(len(TEXTS)))
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        term = task.loss(model, batch)["tokens"]
        (term.sum / term.count).backward()
        optimizer.step()
        losses.append(float(term.nll) / term.count)
    saved = Transformer(config)
    saved.load_state_dict(task.saved_weights(dict(model.named_parameters())))
    with torch.no_grad():
        return task.logits(saved.eval(), batch)[:, 0].numpy(), losses


def test_what_is_learned_does_not_depend_on_the_unit_of_the_numbers(tokenizer):
    """Numbers of any mean and deviation are learned as well as those near 0."""
    numbers = np.array(NUMBERS)
    found, losses = train(tokenizer, numbers)
    assert np.corrcoef(found, numbers)[0, 1] > 0.9
    assert losses[-1] < 0.2 * numbers.var()
    for factor, offset in ((20, 10), (0.01, 3)):
        other, others = train(tokenizer, factor * numbers + offset)
        np.testing.assert_allclose(other, factor * found + offset, atol=0.02 * abs(factor))
        assert others == pytest.approx([factor**2 * loss for loss in losses], rel=0.02)


def test_the_scale_of_a_head_is_undone_exactly(tokenizer):
    config = config_of(tokenizer)
    model = add_noise(Transformer(config), 0.2)
    task = Classify(ClassifySettings(), tokenizer, config)
    task.restore({"scale": Scale(30.0, 4.0)._asdict()})
    batch = task.batch(task.examples(rows_of(NUMBERS)), np.arange(8))
    weights = dict(model.named_parameters())
    outputs = task.logits(model, batch).detach()
    saved = task.saved_weights(weights)
    assert {name for name in weights if saved[name] is not weights[name]} == {
        "heads.sequence.out_proj.weight",
        "heads.sequence.out_proj.bias",
    }
    for name, weight in task.trained_weights(saved).items():
        torch.testing.assert_close(weight, weights[name])
    model.load_state_dict(saved)
    torch.testing.assert_close(task.logits(model, batch).detach(), 4 * outputs + 30)


def test_a_head_without_bias_only_divides(tokenizer):
    config = config_of(tokenizer, classifier_bias=False)
    rows = rows_of([3.0, 4.0] * (len(TEXTS) // 2))
    task = Classify(ClassifySettings(), tokenizer, config, train=rows)
    assert task.scale == (0.0, pytest.approx(12.5**0.5))


def test_only_a_regression_has_a_scale(tokenizer):
    config = config_of(tokenizer, problem_type=None, n_labels=2, label_names=("0", "1"))
    task = Classify(ClassifySettings(), tokenizer, config)
    task.restore({"step": 1})
    assert (task.scale, task.state()) == (Scale(), {})


# --- runs -----------------------------------------------------------------------------------------

STEPS = {
    **{f"model.{key}": value for key, value in SIZES.items()},
    **{"model.heads": ["pooler", "sequence"], "model.classifier_input": "pooler"},
    **{"train.steps": 6, "train.warmup": 1, "train.validate_every": 3, "train.save_every": 3},
    **{"train.learning_rate": 0.01, "train.device": "cpu", "train.precision": "float32"},
    **{"tokenizer.kind": "word", "tokenizer.min_frequency": 1, "train.log_every": 1},
    **{"tokenizer.special": ["cls", "sep", "mask"], "train.check_memory": False},
}


@pytest.fixture
def table(tmp_path):
    """Write texts with numbers as a table; its data settings."""

    def write(numbers, name="rows.csv"):
        path = tmp_path / name
        lines = [f"{text},{number}\n" for text, number in zip(TEXTS, numbers, strict=True)]
        path.write_text("text,score\n" + "".join(lines), encoding="utf-8")
        return {"data.train": str(path), "data.valid": str(path)}

    return write


FAR = [20 * number + 1000.5 for number in NUMBERS]


def scale_of(run):
    return checkpoint.load(checkpoint.list_checkpoints(run / "checkpoints")[-1]).progress["scale"]


def test_losses_scores_and_outputs_of_a_run_are_in_the_unit_of_the_numbers(table, tmp_path):
    run = tmp_path / "run"
    outcome = trifold.train("classify", out=run, view=RecordingView(), **STEPS, **table(FAR))
    loaded = trifold.load(run)
    found = [labels[0].score for labels in loaded.classify(TEXTS)]
    assert np.mean(found) == pytest.approx(np.mean(FAR), abs=np.std(FAR))
    assert outcome.scores["pearson"] == pytest.approx(np.corrcoef(found, FAR)[0, 1], abs=0.01)
    (*_, (_, loss)) = values_of(run, "valid/loss")
    error = np.mean((np.array(found) - FAR) ** 2)
    assert loss == pytest.approx(error, rel=0.01)
    (_, first), *_ = values_of(run, "train/loss")
    assert 0.1 < first / np.var(FAR) < 10  # their squares are 30,000 times the variance
    settings = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert settings["problem_type"] == "regression"
    assert not {"scale", "mean", "deviation"} & settings.keys()


@pytest.mark.slow
def test_a_resumed_regression_equals_an_uninterrupted_one(table, tmp_path):
    data, names = table(FAR), ("whole", "parts")
    trifold.train("classify", out=tmp_path / "whole", view=RecordingView(), **STEPS, **data)
    for view in (InterruptingView(2), InterruptingView(5), RecordingView()):
        trifold.train("classify", out=tmp_path / "parts", resume="auto", view=view, **STEPS, **data)
    whole, parts = (tmp_path / name for name in names)
    assert (
        scale_of(parts)
        == scale_of(whole)
        == pytest.approx({"mean": np.mean(FAR), "deviation": np.std(FAR)}, rel=1e-5)
    )
    files = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, parts)]
    assert files[0] == files[1]
    assert values_of(whole, "train/loss") == values_of(parts, "train/loss")


def test_a_run_with_other_rows_keeps_its_scale(table, tmp_path):
    run = tmp_path / "run"
    few = STEPS | {"train.steps": 3}
    trifold.train("classify", out=run, view=RecordingView(), **few, **table(FAR))
    before = scale_of(run)
    data = table([number / 2 for number in FAR])
    trifold.train(
        "classify", out=run, resume="auto", data_changed=True, view=RecordingView(), **STEPS, **data
    )
    assert scale_of(run) == before
    found = [labels[0].score for labels in trifold.load(run).classify(TEXTS)]
    assert np.mean(found) > 700  # and not 500 · deviation / 2 + 500


def test_a_checkpoint_of_an_earlier_version_has_numbers_as_they_are(tokenizer):
    task = Classify(ClassifySettings(), tokenizer, config_of(tokenizer), train=rows_of(FAR))
    saved = {"step": 7, **task.state()}
    assert task.scale != Scale()
    task.restore({"step": 7})
    assert task.scale == Scale()
    task.restore(json.loads(json.dumps(saved)))
    assert task.scale.mean == pytest.approx(np.mean(FAR))


def test_equal_numbers_are_named(table, tmp_path):
    data = table([2.5] * len(TEXTS))
    with pytest.raises(DataError, match=r"rows\.csv: every number in 'score' is 2\.5, and a regr"):
        load_data(load_recipe("classify", STEPS | data), tmp_path / "tokens", RecordingView())


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_regression_starts_from_the_outputs_of_another_one(table, tokenizer, tmp_path, lora):
    folder, run = tmp_path / "start", tmp_path / "run"
    torch.manual_seed(4)
    Pipeline(add_noise(Transformer(config_of(tokenizer)), 0.3), tokenizer).save(folder)
    few = {
        "train.steps": 1,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.validate_every": 1,
        "train.save_every": 1,
    }
    few |= {"train.learning_rate": 1e-9, "train.device": "cpu", "train.precision": "float32"}
    given = {"start_from": str(folder), "train.lora": lora}
    trifold.train("classify", out=run, view=RecordingView(), **few, **given, **table(FAR))
    folders = [folder, run, *([run / "adapter"] if lora else [])]
    first, *others = (
        [labels[0].score for labels in trifold.load(each).classify(TEXTS[:5])] for each in folders
    )
    for found in others:
        assert found == pytest.approx(first, abs=2e-3)


@torch.no_grad()
def test_an_evaluation_is_not_scaled(tokenizer):
    task = Classify(ClassifySettings(), tokenizer, config_of(tokenizer))
    rows, model = rows_of(FAR), add_noise(Transformer(config_of(tokenizer)), 0.3)
    batch = task.batch(task.examples(rows), np.arange(len(TEXTS)))
    plain = task.measure(model, batch)
    trained = Classify(ClassifySettings(), tokenizer, config_of(tokenizer), train=rows)
    assert trained.scale != Scale()
    assert trained.measure(model, batch)["nll"] == plain["nll"]
