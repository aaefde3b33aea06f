"""The linear path of a classifier: its fit, what training rows read of it, and that training,
evaluation and prediction read the same features.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.train.runs import RecordingView, lines_of

import trifold
from trifold.data import Rows
from trifold.linear.logistic import LinearModel
from trifold.nn import ModelConfig
from trifold.objectives import linear_path
from trifold.objectives.linear_path import PathRows, fit_path
from trifold.predict.text_features import text_features
from trifold.recipe import load_recipe
from trifold.scores.correlation import CorrelationScore
from trifold.train import train
from trifold.train.data import TrainingData, load_data
from trifold.train.initial_weights import new_model
from trifold.train.loop import resume

GOOD = "good fine great superb lovely".split()
BAD = "bad poor awful dull weak".split()
OTHERS = "the a film story scene actor plot end with and of".split()
CHINESE = {"好": "很好看精彩", "坏": "很难看无聊"}
ENCODER = {"shape": "encoder", "heads": ("sequence",)}
TINY: dict[str, Any] = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 16,
    "train.steps": 12, "train.validate_every": 6, "train.save_every": 6, "train.precision": "float32",
    "train.device": "cpu", "train.samples": 2, "batch.tokens": 512,
    "model.linear_path": {"words": 512, "characters": 1024},
}  # fmt: skip


def write(folder: Path, kind: str, rows: int = 120, seed: int = 0) -> str:
    """A table of texts whose labels follow from their words."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        is_good = rng.random() < 0.5
        words = rng.choices(OTHERS, k=5)
        words[rng.randrange(5)] = rng.choice(GOOD if is_good else BAD)
        text = " ".join(words)
        label: object = "yes" if is_good else "no"
        if kind == "numbers":
            label = round(3 + 2 * is_good + rng.random() / 4, 2)
        if kind == "several":
            label = ",".join(name for name in ("film", "story", "plot") if name in words) or "none"
        if kind == "chinese":
            label = rng.choice("好坏")
            text = "".join(rng.choices("这部电影的故事", k=4)) + "".join(
                rng.choices(CHINESE[str(label)], k=3)
            )
        lines.append(f"{text}\t{label}")
    file = folder / f"{kind}-{seed}.tsv"
    file.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "numbers": {"model.problem_type": "regression"},
    "several": {"model.problem_type": "multi_label_classification"},
    "chinese": {},
}


def settings_of(folder: Path, kind: str, **more: Any) -> dict[str, Any]:
    data = {"data.train": write(folder, kind), "data.valid": write(folder, kind, 60, seed=1)}
    return TINY | KINDS[kind] | data | more


def load(folder: Path, kind: str, **more: Any) -> TrainingData:
    recipe = load_recipe("classify", settings_of(folder, kind, **more))
    return load_data(recipe, folder / "tokenizer", RecordingView())


def dense(config: ModelConfig, texts: list[str], idf: torch.Tensor) -> np.ndarray:
    """TF-IDF (N, F) of texts, with vectors of length 1 in each block."""
    features = text_features(config, texts)
    x = np.zeros((len(texts), len(idf)))
    for place, (start, end) in enumerate(zip(features.starts, features.starts[1:], strict=False)):
        ids = features.ids[start:end]
        values = (features.values[start:end] * idf[ids]).double().numpy()
        x[place // 2, ids] = values / (np.linalg.norm(values) or 1.0)
    return x


def test_the_fit_is_that_of_scikit_learn_and_training_rows_are_predicted_by_others(tmp_path):
    data = load(tmp_path, "classes")
    objective: Any = data.objective
    texts, labels = data.bundle.train.columns["text"], data.train.labels
    fitted = fit_path(data.config, texts, labels)
    rows = [set(text_features(data.config, [text]).ids.tolist()) for text in texts]
    frequencies = np.array([sum(column in row for row in rows) for column in range(512 + 1024)])
    expected = np.where(frequencies > 0, np.log((1 + len(texts)) / (1 + frequencies)) + 1, 0)
    np.testing.assert_allclose(fitted.of_features["idf"], expected, rtol=1e-6)
    x = dense(data.config, texts, fitted.of_features["idf"])
    oracle = LogisticRegression(C=linear_path.STRENGTH, tol=1e-8, max_iter=1000).fit(x, labels)
    np.testing.assert_allclose(
        fitted.weight[:, 1] - fitted.weight[:, 0], oracle.coef_[0], atol=2e-3
    )
    for part in range(linear_path.PARTS):  # a row is predicted by a fit on the other parts
        inside = np.arange(len(texts)) % linear_path.PARTS == part
        oracle.fit(x[~inside], labels[~inside])
        ours = fitted.logits[inside, 1] - fitted.logits[inside, 0]
        np.testing.assert_allclose(ours, oracle.decision_function(x[inside]), atol=2e-2)
    batch = objective.batch(data.train, np.array([7, 3]))
    np.testing.assert_array_equal(batch.inputs.features.logits, fitted.logits[[7, 3]])
    batch = objective.batch(data.valid, np.array([7, 3]))
    assert batch.inputs.features.logits is None and len(batch.inputs.features.ids)
    alike = Rows(data.bundle.train.columns, data.bundle.train.lines, data.bundle.train.report)
    assert objective.examples(alike).path.logits is None  # only the rows of the fit themselves


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_predicts_what_the_path_does(tmp_path, kind):
    """Exactly: the last layer for the states of the Transformer is 0."""
    data = load(tmp_path, kind)
    objective: Any = data.objective
    model = new_model(data).eval()
    batch = objective.batch(data.valid, np.arange(60))
    path = model.heads["sequence"].path
    assert torch.equal(objective.logits(model, batch), path(batch.inputs.features))
    assert path.weight.count_nonzero() > 100
    outputs = objective.predictions(path(batch.inputs.features), batch)["outputs"][0]
    if kind == "numbers":
        correlation = CorrelationScore()
        correlation.add(data.valid.labels, outputs)
        assert correlation.values()["pearson"] > 0.9
        saved = objective.saved_weights(dict(model.named_parameters()))
        assert objective.trained_weights(saved).keys() == saved.keys()
        for name, parameter in model.named_parameters():
            parameter.copy_(saved[name])
        numbers = objective.logits(model, batch)[:, 0].numpy()
        deviation, mean = objective.scale.deviation, objective.scale.mean
        np.testing.assert_allclose(numbers, outputs * deviation + mean, rtol=1e-4)
    else:
        assert (
            outputs == (data.valid.labels > 0 if kind == "several" else data.valid.labels)
        ).mean() > 0.85


def test_rows_beyond_the_limit_are_predicted_by_the_fit(tmp_path, monkeypatch):
    data = load(tmp_path, "classes")
    texts, labels = data.bundle.train.columns["text"], data.train.labels
    monkeypatch.setattr(linear_path, "MOST_FEATURES", 60 * 4 * sum(map(len, texts)) // len(texts))
    monkeypatch.setattr(linear_path, "CHUNK", 17)
    fitted = fit_path(data.config, texts, labels)
    assert 55 <= fitted.rows <= 60
    chosen = np.linspace(0, len(texts) - 1, fitted.rows).astype(np.int64)
    others = np.setdiff1d(np.arange(len(texts)), chosen)
    x = dense(data.config, [texts[row] for row in others], fitted.of_features["idf"])
    expected = x @ fitted.weight.double().numpy() + fitted.bias.double().numpy()
    np.testing.assert_allclose(fitted.logits[others], expected, atol=1e-4)
    np.testing.assert_array_equal(fitted.logits, fit_path(data.config, texts, labels).logits)


def test_class_weights_shift_the_path_and_many_classes_have_fewer_buckets():
    config = ModelConfig.parse(
        {**ENCODER, "n_labels": 2, "linear_path": {"words": 64, "characters": 64}}
    )
    texts, labels = (
        ["good film", "bad film", "good plot", "bad end"] * 3,
        np.array([1, 0, 1, 0] * 3),
    )
    plain = fit_path(config, texts, labels)
    weighted = fit_path(config, texts, labels, torch.tensor([1.0, 4.0]))
    np.testing.assert_allclose(weighted.bias - plain.bias, [0, np.log(4)], atol=1e-6)
    many = config.model_copy(update={"n_labels": 2**19})
    columns = linear_path.path_columns(linear_path.with_fitting_path(many))
    assert columns.words == columns.characters == 16
    assert linear_path.with_fitting_path(config) == config
    one = fit_path(config.model_copy(update={"n_labels": 1}), texts[:1], np.array([0]))
    assert one.weight.shape == (128, 1) and one.logits.shape == (1, 1)


def test_many_texts_have_more_buckets_than_few():
    def buckets(characters: int, classes: int = 2, given: int = 2**16) -> tuple[int, int]:
        path = {"words": given, "characters": given}
        config = ModelConfig.parse({**ENCODER, "n_labels": classes, "linear_path": path})
        columns = linear_path.path_columns(linear_path.with_fitting_path(config, characters))
        return columns.words, columns.characters

    assert buckets(0) == buckets(2**16) == (2**16, 2**16)
    assert buckets(2**16 + 1) == (2**17, 2**17)
    assert buckets(10**9) == buckets(10**9, classes=4) == (2**19, 2**19)
    assert buckets(10**9, classes=8) == (2**18, 2**18)
    assert buckets(10**9, classes=9) == (2**17, 2**17)
    assert buckets(10**9, classes=100) == (2**16, 2**16)
    assert buckets(10**9, given=2**15) == (2**15, 2**15)  # set by a user


def test_a_fit_leaves_out_buckets_that_no_text_uses():
    idf = np.array([0.0, 1.5, 0.0, 2.0])
    used = linear_path.Used.of(idf)
    assert used.buckets.tolist() == [1, 3] and used.idf.tolist() == [1.5, 2.0]
    assert used.places[[1, 3]].tolist() == [0, 1]
    spread = used.spread(LinearModel(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])))
    assert spread.weights.tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
    assert spread.bias.tolist() == [5.0]


def test_known_logits_are_those_of_the_chosen_rows():
    rows = PathRows(["a b", "c"], np.array([[1, 2], [3, 4]], np.float32))
    assert rows.features(ModelConfig(), np.array([1])).logits.tolist() == [[3, 4]]


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_evaluation_and_prediction_agree(tmp_path, kind):
    """Validation before the first step and at the end; predictions of the saved model, alone and
    together, are those of its last validation.
    """
    view = RecordingView()
    settings = settings_of(tmp_path, kind)
    outcome = train("classify", out=tmp_path / "run", view=view, **settings)
    validations = [line for line in lines_of(tmp_path / "run") if "valid/loss" in line]
    assert [line["step"] for line in validations] == [0, 6, 12]
    parts = outcome.comparison.parts
    assert [*parts] == ["its linear path alone", "its Transformer alone"]
    key = outcome.comparison.score
    if kind != "several":  # whose thresholds are chosen for the sum
        alone = parts["its linear path alone"][key]
        assert validations[0][f"valid/{key}"] == pytest.approx(alone, abs=1e-6)
    assert outcome.scores[key] >= validations[0][f"valid/{key}"]
    assert "its linear path alone: " in outcome.comparison.lines()[0]
    model = trifold.load(tmp_path / "run")
    rows = [
        line.split("\t")
        for line in Path(settings["data.valid"]).read_text("utf-8").splitlines()[1:]
    ]
    texts = [text for text, _ in rows]
    together = model.classify(texts)
    alone = [model.classify([text])[0] for text in texts[:9]]
    for one, many in zip(alone, together, strict=False):
        assert [each.label for each in one] == [each.label for each in many]
        np.testing.assert_allclose([x.score for x in one], [x.score for x in many], atol=1e-4)
    trace = model.trace(texts[0])
    traced = dict(zip(model.config.labels, trace.probabilities(trace.logits), strict=True))
    for label, score in together[0]:
        assert float(traced[label]) == pytest.approx(score, abs=1e-4)
    if kind in ("classes", "chinese"):
        correct = sum(found[0].label == row[1] for found, row in zip(together, rows, strict=True))
        assert outcome.scores["accuracy"] == pytest.approx(100 * correct / len(rows))


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    settings = settings_of(tmp_path, "classes")
    train("classify", out=tmp_path / "whole", view=RecordingView(), **settings)
    train(
        "classify", out=tmp_path / "parts", view=RecordingView(), **settings | {"train.steps": 12}
    )
    for path in (tmp_path / "parts" / "checkpoints").glob("step-*12"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    resume(tmp_path / "parts", view=RecordingView())
    for name in ("model/model.safetensors", "model/config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


@pytest.mark.slow
def test_folds_may_choose_the_path_alone(tmp_path):
    """Steps that are too large make every later validation worse."""
    data = {"data.train": write(tmp_path, "classes", 60), "data.holdout": "folds:3"}
    view = RecordingView()
    wild = {
        "train.learning_rate": 0.5,
        "train.warmup": 0,
        "train.clip": None,
        "train.schedule": "constant",
    }
    settings = TINY | data | wild
    outcome = train("classify", out=tmp_path / "run", view=view, **settings)
    choice = json.loads((tmp_path / "run/folds/choice.json").read_text())
    assert choice["step"] == 0 and choice["validated"][0] == 0
    assert outcome.best_step == outcome.steps == 0 and outcome.finished
    key = outcome.comparison.score
    alone = outcome.comparison.parts["its linear path alone"][key]
    assert outcome.comparison.model.scores[key] == alone > 75
    model = trifold.load(tmp_path / "run").model
    assert not model.heads["sequence"].out_proj.weight.any()
    texts = [line.split("\t")[0] for line in Path(data["data.train"]).read_text().splitlines()[1:]]
    assert model.heads["sequence"].path.idf.count_nonzero() == len(
        {*text_features(model.config, texts).ids.tolist()}  # of all rows, not of a fold
    )
    again = train("classify", out=tmp_path / "run", resume="auto", view=view, **settings)
    assert again.steps == 0 and view.lines[-1].startswith("nothing to do")


def test_without_the_path_nothing_is_fitted(tmp_path):
    data = load(tmp_path, "classes", **{"model.linear_path": False})
    assert data.train.path is None and data.bundle.initialize is None
    assert not data.objective.starts_fitted
    assert data.recipe.model.dropout == 0.1 and data.config.linear_path is None
    assert data.objective.batch(data.train, np.arange(2)).inputs.features is None


def test_the_path_is_a_default_of_new_models_for_single_texts(tmp_path):
    file = write(tmp_path, "classes")
    new = load_recipe("classify", {"data.train": file})
    assert new.model.linear_path is not None and new.model.dropout == 0.3
    given = load_recipe("classify", {"data.train": file, "model.preset": "bert-base"})
    assert given.model.linear_path is None
    data = load(
        tmp_path, "classes", **{"train.steps": 2, "train.validate_every": 2, "train.save_every": 2}
    )
    train(data.recipe, out=tmp_path / "run", view=RecordingView())
    start = load_recipe("classify", {"data.train": file, "start_from": str(tmp_path / "run")})
    assert start.model.linear_path is None
    view = RecordingView()
    new_model(load_data(start, tmp_path / "tokenizer3", view))
    assert any("its linear path is of other rows" in line for line in view.lines)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(
        "sentence1\tsentence2\tlabel\n" + "a b\tb c\tyes\nd\te f\tno\n" * 20, encoding="utf-8"
    )
    recipe = load_recipe("classify", {"data.train": str(pairs), "data.holdout": 4})
    data = load_data(recipe, tmp_path / "tokenizer2", RecordingView())
    assert data.config.linear_path.compared and data.recipe.model.dropout == 0.1
