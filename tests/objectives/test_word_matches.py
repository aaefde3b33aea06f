"""An embedding of words that both texts of a pair have: the same in training and in predictions, and
a default where a new model compares texts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import ONE_LAYER
from tests.objectives.common import random_model
from tests.train.runs import InterruptingView, RecordingView, assert_equal_runs

from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.hub import load_model, save_model
from trifold.hub.convert import convert
from trifold.hub.folder import describe_folder
from trifold.nn import ModelConfig
from trifold.objectives.answer import AnswerSettings
from trifold.objectives.choose import ChooseSettings
from trifold.objectives.classify import ClassifySettings
from trifold.objectives.objective import BuildContext, ObjectiveSettings
from trifold.predict.answer import read_windows, window_sizes
from trifold.predict.choose import after_question
from trifold.predict.model_reader import ModelReader
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings
from trifold.train import train
from trifold.train.data import COMPARES, TrainingData, load_data

MODEL = ONE_LAYER | {
    "shape": "encoder", "positions": "learned", "n_token_types": 2, "max_positions": 40,
    "dropout": 0.0, "classifier_input": "mean", "word_matches": True,
}  # fmt: skip
PAIRS = [
    ("a runner goes home", "the runners are at home"),
    ("two men sit", "Two men sat down there"),
    ("we go", "a cat"),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [
        {"sentence1": a, "sentence2": b, "label": "xy"[n % 2]} for n, (a, b) in enumerate(PAIRS)
    ],
    "choose": [
        {"sent1": a, "sent2": "what now", "choices": [b, a, "a cat ran"], "label": 0}
        for a, b in PAIRS
    ],
    "answer": [
        {
            "question": a,
            "context": f"{b} . {a} and more",
            "answers": [{"text": b, "answer_start": 0}],
        }
        for a, b in PAIRS
    ],
}
SETTINGS: dict[str, tuple[ObjectiveSettings, str]] = {
    "classify": (ClassifySettings(), "sequence"),
    "both orders": (ClassifySettings(both_orders=True), "sequence"),
    "choose": (ChooseSettings(), "choice"),
    "answer": (AnswerSettings(max_length=14, stride=2), "span"),
}


def write(folder: Path, rows: list[dict[str, Any]]) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def build(folder: Path, name: str) -> Any:
    settings, head = SETTINGS[name]
    file = write(folder, ROWS[settings.kind])
    tokenizer = {"kind": "bpe", "vocab_size": 300, "special": ["cls", "sep", "mask"]}
    context = BuildContext(
        DataSettings.parse({"train": file, "valid": file}),
        TokenizerSettings.parse(tokenizer),
        ModelConfig.parse(MODEL | {"heads": [head]}),
        BatchSettings(),
        1,
        folder / "run",
        lambda line: None,
    )
    return settings.build(context)


def inputs_of_predictions(bundle: Any, name: str) -> Any:
    """What `trifold predict` gives the model for the same rows, padded."""
    objective = bundle.objective
    reader = ModelReader(random_model(bundle.config), objective.tokenizer)
    kind = SETTINGS[name][0].kind
    rows = ROWS[kind]
    if kind == "classify":
        texts, pairs = zip(*PAIRS, strict=True)
        encoded = reader.encode_ids([*texts], [*pairs])
        if name == "both orders":
            return reader._padded(encoded, range(3)), reader._padded(
                reader.encode_ids([*pairs], [*texts]), range(3)
            )
    elif kind == "choose":
        texts = [row["sent1"] for row in rows for _ in row["choices"]]
        pairs = [x for row in rows for x in after_question(row["sent2"], row["choices"])]
        encoded = reader.encode_ids(texts, pairs)
    else:
        sizes = window_sizes(14, 2, 40)
        return (
            reader.inputs(
                [
                    window
                    for row in rows
                    for window in read_windows(
                        objective.tokenizer,
                        row["question"],
                        row["context"],
                        *sizes,
                        "",
                        compares=True,
                    )
                ]
            ),
        )
    return (reader._padded(encoded, range(len(encoded.ids))),)


@pytest.mark.parametrize("name", SETTINGS)
def test_training_and_predictions_read_the_same_matches(tmp_path, name):
    bundle = build(tmp_path, name)
    objective = bundle.objective
    examples = objective.examples(bundle.valid)
    batch = objective.batch(examples, np.arange(len(examples.lengths)))
    inputs = batch.inputs
    assert inputs.matches.shape == inputs.tokens.shape
    assert not inputs.matches[0, inputs.packing.n_real :].any()  # padding
    special = torch.tensor([objective.tokenizer.cls_id, objective.tokenizer.sep_id])
    assert not inputs.matches[torch.isin(inputs.tokens, special)].any()
    assert inputs.matches.unique().tolist() == [0, 1, 2]
    found = [values[values >= 0].tolist() for values in _rows(inputs)]
    expected = []
    for padded in inputs_of_predictions(bundle, name):
        values = padded.matches.masked_fill(~padded.attend, -1)
        assert (padded.matches[~padded.attend] == 0).all()
        expected += [row[row >= 0].tolist() for row in values]
    assert found == expected


def _rows(inputs: Any) -> list[torch.Tensor]:
    starts = inputs.packing.starts.tolist()
    return [inputs.matches[0, a:b] for a, b in pairwise(starts)]


def test_logits_of_a_batch_are_those_of_single_pairs(tmp_path):
    """And depend on what the other text has."""
    bundle = build(tmp_path, "classify")
    objective = bundle.objective
    model = random_model(bundle.config).eval()
    examples = objective.examples(bundle.valid)
    order = np.array([2, 0, 1])
    with torch.no_grad():
        found = objective.logits(model, objective.batch(examples, order))
        reader = ModelReader(model, objective.tokenizer)
        texts, pairs = zip(*PAIRS, strict=True)
        together = reader.run([*texts], [*pairs], reader.head("sequence"))
        for place, row in enumerate(order):
            (alone,) = reader.run([texts[row]], [pairs[row]], reader.head("sequence"))
            assert torch.allclose(found[place], alone, atol=1e-5)
            assert torch.allclose(together[row], alone, atol=1e-5)
        batch = objective.batch(examples, order)
        without = replace(batch, inputs=replace(batch.inputs, matches=None))
        assert not torch.allclose(found, objective.logits(model, without), atol=1e-2)


def test_a_saved_model_has_the_same_bits(tmp_path):
    model = random_model(build(tmp_path, "classify").config).eval()
    save_model(tmp_path / "model", model)
    loaded, _ = load_model(tmp_path / "model")
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    assert "only trifold loads it" in describe_folder(tmp_path / "model")


# --- the default ----------------------------------------------------------------------------------


def table(folder: Path, *, pairs: bool = True) -> str:
    lines = [f"{a}\t{b}\t{'xy'[n % 2]}" for n, (a, b) in enumerate(PAIRS * 4)]
    header = "sentence1\tsentence2\tlabel"
    if not pairs:
        header = "sentence1\tnote\tlabel"
    file = folder / "table.tsv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return str(file)


def load(folder: Path, task: str, file: str, **changes: Any) -> tuple[TrainingData, list[str]]:
    view = RecordingView()
    values = {"data.train": file, "data.valid": file}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return load_data(load_recipe(task, values), folder / "tokenizer", view), view.lines


# task, changes -> word_matches, classifier_input, heads, positions
CHOSEN: dict[str, tuple[str, dict[str, Any], tuple[bool, str, tuple[str, ...], str]]] = {
    "pairs": ("classify", {}, (True, "mean", ("sequence",), "learned")),
    "switched off": (
        "classify",
        {"model__word_matches": False},
        (False, "pooler", ("pooler", "sequence"), "learned"),
    ),
    "another pooling": (
        "classify",
        {"model__classifier_input": "first"},
        (True, "first", ("pooler", "sequence"), "learned"),
    ),
    "a decoder": (
        "classify",
        {"model__shape": "decoder"},
        (False, "last", ("sequence",), "learned"),
    ),
    "a preset": (
        "classify",
        {"model__preset": "bert-base", "train__steps": 9},
        (False, "pooler", ("pooler", "sequence"), "learned"),
    ),
    "choices": ("choose", {}, (True, "mean", ("choice",), "learned")),
    "answers": ("answer", {}, (True, "first", ("span",), "rotary")),
    "answers, switched off": (
        "answer",
        {"model__word_matches": False},
        (False, "first", ("span",), "learned"),
    ),
    "answers, other positions": (
        "answer",
        {"model__positions": "alibi"},
        (True, "first", ("span",), "alibi"),
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_new_model_compares_pairs(tmp_path, name):
    task, changes, expected = CHOSEN[name]
    file = table(tmp_path) if task == "classify" else write(tmp_path, ROWS[task])
    data, lines = load(tmp_path, task, file, **changes)
    for config in (data.config, data.recipe.model):
        found = (config.word_matches, config.classifier_input, config.heads, config.positions)
        assert found == expected
    assert any(line.startswith(COMPARES) for line in lines) == expected[0]
    assert (data.train.matches is not None) == expected[0]


@pytest.mark.slow
def test_a_model_of_single_texts_and_one_that_starts_from_another_compare_nothing(tmp_path):
    data, _ = load(tmp_path, "classify", table(tmp_path, pairs=False))
    config = data.config
    assert (config.word_matches, config.classifier_input) == (False, "pooler")
    settings = SMALL | {"data.train": table(tmp_path, pairs=False)}
    settings["data.valid"] = settings["data.train"]
    train("classify", out=tmp_path / "start", view=RecordingView(), **settings)
    start = {"start_from": str(tmp_path / "start")}
    data, _ = load(tmp_path / "b", "classify", table(tmp_path), **start)
    assert not data.config.word_matches and data.train.matches is None


SMALL: dict[str, Any] = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.d_ff": 16,
    "train.precision": "float32",
    "train.device": "cpu",
    "train.samples": 0,
    "train.steps": 8,
    "train.validate_every": 4,
    "train.save_every": 4,
    "train.warmup": 2,
    "train.baselines": False,
}


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    file = table(tmp_path)
    settings = SMALL | {"data.train": file, "data.valid": file}
    train("classify", out=tmp_path / "whole", view=RecordingView(), **settings)
    train("classify", out=tmp_path / "parts", view=InterruptingView(at=5), **settings)
    train("classify", out=tmp_path / "parts", resume="auto", view=RecordingView(), **settings)
    assert_equal_runs(tmp_path / "parts", tmp_path / "whole")
    config = load_recipe(tmp_path / "parts").model
    assert config.word_matches and config.classifier_input == "mean"


def test_conversion_to_another_family_is_refused(tmp_path):
    model = random_model(build(tmp_path, "classify").config)
    save_model(tmp_path / "model", model)
    with pytest.raises(Exception, match="word_matches"):
        convert(tmp_path / "model", tmp_path / "bert", to="bert")
