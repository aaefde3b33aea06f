"""The linear path of a tagger: its fit, what training sentences read of it, and that training,
evaluation and prediction read the same forms of words.
"""

from __future__ import annotations

import json
import random
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.command_line import run_command
from tests.train.runs import RecordingView, lines_of

import trifold
from trifold.linear.forms import (
    FORMS,
    Place,
    chosen_sentences,
    forms_of,
    hashed_forms,
    places_of,
)
from trifold.nn import ModelConfig
from trifold.nn.parts import LogitsPart, part_of
from trifold.objectives import linear_path
from trifold.objectives.evaluation import PARTS_OF_MODEL
from trifold.objectives.linear_path import fit_forms
from trifold.predict.tag_transitions import TRANSITIONS, Transitions
from trifold.predict.word_features import WordRows
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import TrainingData, load_data
from trifold.train.initial_weights import new_model

BUCKETS = 2**12
NAMES = "Ada Ben Carla Dora Emil Fay Gus Hal".split()
OTHERS = "the dog ran in a red house and saw it".split()
TINY: dict[str, Any] = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 16,
    "train.steps": 8, "train.validate_every": 4, "train.save_every": 4, "train.precision": "float32",
    "train.device": "cpu", "train.samples": 2, "batch.tokens": 256, "tokenizer.vocab_size": 80,
    "model.linear_path": {"words": 0, "characters": 0, "forms": BUCKETS},
}  # fmt: skip


def sentences_of(rows: int, seed: int = 0) -> list[tuple[list[str], list[str]]]:
    """Sentences with the names of persons, which are those of streets before `Street`."""
    rng = random.Random(seed)
    found = []
    for _ in range(rows):
        words = rng.choices(OTHERS, k=rng.randrange(1, 6))
        tags = ["O"] * len(words)
        is_street = rng.random() < 0.5
        place = rng.randrange(len(words) + 1)
        words[place:place] = [rng.choice(NAMES), "Street"] if is_street else [rng.choice(NAMES)]
        tags[place:place] = ["B-LOC", "I-LOC"] if is_street else ["B-PER"]
        found.append((words, tags))
    return found


def write(folder: Path, name: str, rows: int, seed: int = 0) -> str:
    path = folder / name
    blocks = (
        "\n".join(f"{word} {tag}" for word, tag in zip(*both, strict=True))
        for both in sentences_of(rows, seed)
    )
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return str(path)


def load(folder: Path, **changes: Any) -> TrainingData:
    given = {
        "data.train": write(folder, "train.txt", 80),
        "data.valid": write(folder, "valid.txt", 20, 1),
    }
    recipe = load_recipe("tag", given | TINY | changes)
    return load_data(recipe, folder / "tokenizer", RecordingView())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained run, and its data."""
    folder = tmp_path_factory.mktemp("tags")
    data = load(folder)
    train(data.recipe, out=folder / "run", view=RecordingView())
    return folder / "run", data


def test_a_word_has_as_many_forms_as_are_declared():
    for word in ("", "a", "Ada", "12-A", "№1"):
        assert len([*forms_of(Place(("", "", word, "", "")))]) == FORMS
    sentences = [["Ada", "ran"], ["so"]]
    found = hashed_forms(sentences, BUCKETS)
    assert found.shape == (3, FORMS) and len(places_of(sentences)) == 3
    assert (found[2] == hashed_forms([["so"]], BUCKETS)[0]).all()  # of its sentence alone


def test_the_forms_are_those_of_a_word_and_of_its_neighbors():
    place = places_of([["In", "New", "York-12", "he", "ran"]])[2]
    assert [*forms_of(place)] == [
        "word York-12",
        "end 12",
        "start Yo",
        "end -12",
        "start Yor",
        "here york-12",
        "here, shape Xx-d",
        "before new",
        "before, shape Xx",
        "after he",
        "after, shape x",
        "three shapes Xx Xx-d x",
        "five shapes Xx Xx Xx-d x x",
    ]
    assert places_of([["a"], ["b", "c"]]) == [
        Place(("", "", "a", "", "")),
        Place(("", "", "b", "c", "")),
        Place(("", "b", "c", "", "")),
    ]


def fitted_on(sentences: list[Any], names: list[str]) -> Any:
    config = ModelConfig.parse(
        {
            "shape": "encoder",
            "heads": ["token"],
            "n_labels": len(names),
            "label_names": names,
            "linear_path": TINY["model.linear_path"],
        }
    )
    words = WordRows.of(config, [row for row, _ in sentences], [[*range(3)]] * len(sentences))
    labels = [np.array([*map(names.index, tags)]) for _, tags in sentences]
    return config, words, fit_forms(config, words, labels)


TAGS = ["O", "B-LOC", "I-LOC", "B-PER"]


def test_the_fit_is_that_of_scikit_learn():
    sentences = sentences_of(60)
    config, words, fitted = fitted_on(sentences, TAGS)
    idf = fitted.of_features["idf"].double().numpy()
    used = linear_path.Used.of(idf)
    x = np.zeros((len(words.forms), BUCKETS))
    found = linear_path._matrix_of_forms(words.forms, idf, used)
    x[:, used.buckets] = found.matrix.to_dense().numpy()
    unseen = hashed_forms([["zebra", "ran"]], BUCKETS)
    stored = linear_path._matrix_of_forms(unseen, idf, used).size
    assert stored == sum(int((idf[np.unique(row)] > 0).sum()) for row in unseen) < unseen.size
    y = [TAGS.index(tag) for _, tags in sentences for tag in tags]
    oracle = LogisticRegression(C=linear_path.STRENGTH_OF_FORMS, tol=1e-8, max_iter=1000).fit(x, y)
    ours = (x @ fitted.weight.double().numpy() + fitted.bias.double().numpy()).astype(np.float64)
    ours = np.exp(ours - ours.max(1, keepdims=True))
    np.testing.assert_allclose(
        ours / ours.sum(1, keepdims=True), oracle.predict_proba(x), atol=5e-3
    )
    path = part_of(LogitsPart, config).new(config)
    parameters = {"weight": fitted.weight, "bias": fitted.bias, **fitted.of_features}
    for name, value in parameters.items():
        getattr(path, name).data.copy_(value)
    path.scale.data.fill_(1.0)
    with torch.no_grad():
        of_model = path(words._features_of(np.array([3, -1, 0]))).numpy()
    expected = x[[3, 0]] @ fitted.weight.numpy() + fitted.bias.numpy()
    np.testing.assert_allclose(of_model[[0, 2]], expected, atol=1e-4)


def test_the_logits_of_a_training_sentence_do_not_know_its_tags():
    sentences = sentences_of(30)
    *_, before = fitted_on(sentences, TAGS)
    words, tags = sentences[4]
    changed = [*sentences]
    changed[4] = (words, [TAGS[(TAGS.index(tag) + 1) % 4] for tag in tags])
    *_, after = fitted_on(changed, TAGS)
    starts = np.cumsum([0, *(len(row) for row, _ in sentences)])
    own = slice(starts[4], starts[5])
    np.testing.assert_array_equal(before.logits[own], after.logits[own])
    assert abs(before.logits - after.logits).max() > 0.1


def test_sentences_beyond_the_most_words_are_predicted(monkeypatch):
    monkeypatch.setattr("trifold.linear.forms.MOST_WORDS", 60)
    sentences = sentences_of(60)
    *_, fitted = fitted_on(sentences, TAGS)
    assert 5 < fitted.rows < 30
    assert (abs(fitted.logits).max(1) > 0).all()
    chosen = chosen_sentences(np.array([len(row) for row, _ in sentences]))
    other = next(number for number in range(60) if number not in chosen)
    sentences[other] = (sentences[other][0], ["B-PER"] * len(sentences[other][0]))
    *_, again = fitted_on(sentences, TAGS)
    assert again.weight.equal(fitted.weight)


def test_training_begins_with_the_path_alone(tmp_path):
    data = load(tmp_path)
    model = new_model(data)
    objective = data.objective
    batch = objective.batch(data.valid, np.arange(20))
    with torch.no_grad():
        logits = objective.logits(model, batch)
        path = model.heads["token"].path(batch.inputs.features)
    torch.testing.assert_close(logits, path)
    known = objective.batch(data.train, np.arange(4)).inputs.features
    assert known.logits is not None and len(known.logits) >= data.train.lengths[:4].sum()


def test_evaluation_and_prediction_read_the_same(trained):
    run, data = trained
    pipe = trifold.load(run)
    sentences = data.bundle.valid.columns["words"]
    many = pipe.tag(sentences)
    alone = [pipe.tag([words])[0] for words in sentences]
    as_texts = pipe.tag([" ".join(words) for words in sentences], merge="words", ignore=())
    objective = data.objective
    batch = objective.batch(data.valid, np.arange(len(sentences)))
    with torch.no_grad():
        logits = objective.logits(pipe.model, batch)
    found = objective.predictions(logits, batch)
    (classes,), (confidences,) = found["classes"], found["confidences"]
    for row, (tags, one) in enumerate(zip(many, alone, strict=True)):
        firsts = data.valid.firsts[row]
        expected = zip(classes[row][firsts], confidences[row][firsts], strict=True)
        for tag, same, (number, score) in zip(tags, one, expected, strict=True):
            assert tag.label == same.label == data.config.labels[number]
            assert tag.score == pytest.approx(float(score), abs=1e-4)
            assert same.score == pytest.approx(tag.score, abs=1e-4)
    assert [spans for spans in as_texts if spans]


def test_evaluation_and_prediction_follow_the_transitions_of_the_folder(trained, tmp_path):
    run, data = trained
    changed = tmp_path / "run"
    shutil.copytree(run, changed)
    file = changed / "model" / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8"))
    numbers = {name: number for number, name in enumerate(data.config.labels)}
    counted = Transitions.count(data.bundle.train.columns["tags"], numbers)
    assert settings[TRANSITIONS] == counted.as_setting()[TRANSITIONS]
    streets = [[9.0 if name == "I-LOC" else 0.0 for name in numbers]] * (len(numbers) + 1)
    file.write_text(json.dumps(settings | {TRANSITIONS: streets}), encoding="utf-8")
    sentences = data.bundle.valid.columns["words"]
    tags = [[tag.label for tag in row] for row in trifold.load(changed).tag(sentences)]
    assert tags != [[tag.label for tag in row] for row in trifold.load(run).tag(sentences)]
    assert "I-LOC" in tags[0]
    printed = run_command("eval", str(changed), str(data.recipe.data.valid), "--json")
    pairs = zip(chain(*tags), chain(*data.bundle.valid.columns["tags"]), strict=True)
    matches = [one == other for one, other in pairs]
    accuracy = json.loads(printed.out)["scores"]["accuracy"]
    assert accuracy == pytest.approx(100 * sum(matches) / len(matches))


def test_a_run_from_a_tagger_counts_its_own_transitions(trained, tmp_path, monkeypatch):
    run, _ = trained
    file = tmp_path / "train.txt"
    file.write_text("Ada B-PER\nran O\n\nBen B-PER\nCarla B-CAT\n", encoding="utf-8")
    given = {"data.train": str(file), "data.valid": str(file), "start_from": str(run)}
    steps = {"train.steps": 2, "train.warmup": 0, "train.device": "cpu"}

    def settings_of(name: str) -> Any:
        trifold.train("tag", out=tmp_path / name, view=RecordingView(), **given, **steps)
        path = tmp_path / name / "model" / "tokenizer_config.json"
        return json.loads(path.read_text("utf-8"))

    assert [*map(len, settings_of("three")[TRANSITIONS])] == [3] * 4
    monkeypatch.setattr("trifold.predict.tag_transitions.MOST_CLASSES", 2)
    assert TRANSITIONS not in settings_of("none")


def test_the_report_has_both_parts_alone(trained):
    run, _ = trained
    compared = (run / "scores.json").read_text("utf-8")
    assert all(name in compared for name in PARTS_OF_MODEL)
    first = next(line for line in lines_of(run) if "valid/f1" in line)
    assert first["step"] == 0  # the path alone can be kept


def test_without_the_path_other_programs_load_the_model(tmp_path):
    data = load(tmp_path, **{"model.linear_path": False})
    assert data.config.linear_path is None
    assert data.objective.batch(data.train, np.arange(2)).inputs.features is None
    start = load_recipe("tag", {"data.train": write(tmp_path, "a.txt", 30)})
    assert start.model.linear_path.forms == 2**16
    preset = load_recipe(
        "tag", {"data.train": write(tmp_path, "a.txt", 30), "model.preset": "bert-base"}
    )
    assert preset.model.linear_path is None
