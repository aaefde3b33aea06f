"""Classification: batches, loss, scores and labels."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.objectives.common import random_model
from torch.nn import functional as F

import trifold
from trifold.data import Pairs
from trifold.errors import DataError, SettingsError
from trifold.nn import Inputs, ModelConfig
from trifold.objectives.classify import Classify, ClassifySettings, sort_labels
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train.data import load_data
from trifold.train.monitor import View

TEXTS = ["good and fine", "bad", "so bad it is good", "fine", "it is bad and it is sad"]
LABELS = ["glad", "sad", "glad", "glad", "sad"]
READS = ("pooler", "first", "last", "eos")


def rows(texts=TEXTS, labels=LABELS):
    return Pairs(list(texts), list(labels), list(range(1, len(texts) + 1)))


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(kind="word", vocab_size=40, min_frequency=1, special=["cls", "sep"])
    return train_tokenizer(TEXTS, settings)


def model_of(tokenizer, reads="pooler", shape="encoder"):
    config = ModelConfig(
        shape=shape, vocab_size=tokenizer.vocab_size, max_positions=16, positions="learned", d_model=16, n_layers=2,
        n_heads=2, d_ff=24, dropout=0.0, heads=["pooler", "sequence"] if reads == "pooler" else ["sequence"],
        classifier_input=reads, label_names=["glad", "sad"], eos_id=tokenizer.sep_id, pad_id=tokenizer.pad_id,
    )  # fmt: skip
    return random_model(config)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_packed_logits_equal_those_of_single_texts(tokenizer, reads, shape):
    model = model_of(tokenizer, reads, shape)
    objective = Classify(ClassifySettings(), tokenizer, model.config)
    examples = objective.examples(rows())
    batch = objective.batch(examples, np.array([4, 0, 2, 1, 3]))
    found = objective.logits(model, batch)
    for place, row in enumerate([4, 0, 2, 1, 3]):
        ids = torch.tensor([tokenizer.rows([TEXTS[row]])[0].ids])
        alone = model.head_outputs(Inputs(ids), heads=["sequence"])["sequence"][0]
        assert torch.allclose(found[place], alone, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_a_sum_of_cross_entropies(tokenizer, smoothing):
    model = model_of(tokenizer)
    objective = Classify(ClassifySettings(label_smoothing=smoothing), tokenizer, model.config)
    batch = objective.batch(objective.examples(rows()), np.arange(5))
    term = objective.loss(model, batch)["tokens"]
    logits = objective.logits(model, batch)
    assert objective.counts(batch) == {"tokens": 5} == {"tokens": term.count}
    expected = F.cross_entropy(logits, batch.labels, reduction="none", label_smoothing=smoothing).sum()
    assert torch.allclose(term.sum, expected)
    plain = term.sum if term.nll is None else term.nll
    assert torch.allclose(plain, F.cross_entropy(logits, batch.labels, reduction="sum"))


def test_long_texts_are_truncated_and_reported(tokenizer):
    lines = []
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config, 5, lines.append)
    examples = objective.examples(rows())
    assert examples.lengths.max() == 5
    ends = examples.texts.ids[examples.texts.starts[1:] - 1]
    assert (ends == tokenizer.sep_id).all()  # what stands around a text stays
    assert any("2 texts were cut" in line for line in lines)


def test_an_unknown_label_is_an_error_with_its_line(tokenizer):
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config)
    with pytest.raises(DataError, match="'angry'") as error:
        objective.examples(rows(["good", "bad"], ["glad", "angry"]))
    assert ":2:" in str(error.value)


def test_a_missing_head_is_an_error(tokenizer):
    config = model_of(tokenizer).config.model_copy(update={"heads": ("lm",)})
    problem = "model.heads: pooler, sequence is missing; set model.heads=[pooler, sequence]"
    assert ClassifySettings().model_problem(config) == problem


def test_a_missing_end_token_is_an_error(tokenizer):
    config = model_of(tokenizer, "eos").config.model_copy(update={"eos_id": tokenizer.unk_id})
    objective = Classify(ClassifySettings(), tokenizer, config)
    with pytest.raises(SettingsError, match="classifier_input"):
        objective.batch(objective.examples(rows()), np.arange(5))


# --- labels and scores ---------------------------------------------------------------------------------------


def test_labels_are_sorted_by_name_and_number():
    assert sort_labels(["10 stars", "2 stars", "1 star", "2 stars"]) == ("1 star", "2 stars", "10 stars")
    assert sort_labels([f"LABEL_{n}" for n in range(12)]) == tuple(f"LABEL_{n}" for n in range(12))
    assert sort_labels(["b", "1", "a", "", "01"]) == sort_labels(["01", "", "a", "1", "b"])


# --- runs ----------------------------------------------------------------------------------------------------

SMALL = {
    "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 32, "model.dropout": 0.0,
    "model.max_positions": 32, "tokenizer.vocab_size": 60, "tokenizer.kind": "word", "batch.tokens": 256,
    "train.device": "cpu", "train.precision": "float32", "train.warmup": 5, "train.learning_rate": 0.02,
    "data.source": "text", "data.target": "label",
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Texts with one word that determines the label."""
    lines = [
        {"text": f"some {word} words of {other} sort {n}", "label": label}
        for word, label in (("merry", "3 glad"), ("dull", "20 sad"), ("odd", "100 odd"))
        for other in ("this", "that", "any")
        for n in range(6)
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_trained_classifier_loads_and_predicts(table, tmp_path):
    settings = SMALL | {"data.train": str(table), "data.valid": str(table), "data.test": str(table)}
    steps = {"train.steps": 60, "train.validate_every": 60, "train.save_every": 60, "train.samples": 1}
    outcome = trifold.train("demo-read-packages", out=tmp_path / "run", **settings, **steps)
    assert outcome.scores == {"accuracy": 100.0, "macro_f1": 100.0}
    loaded = trifold.load(tmp_path / "run")
    assert loaded.config.labels == ("3 glad", "20 sad", "100 odd")
    found = loaded.classify(["some dull words", "some odd words"])
    assert [candidates[0].label for candidates in found] == ["20 sad", "100 odd"]
    from tests.command_line import run_command

    result = json.loads(run_command("eval", str(tmp_path / "run"), "--json").out)
    assert result["scores"] == {"accuracy": 100.0, "macro_f1": 100.0}
    assert run_command("eval", str(tmp_path / "run")).out.splitlines()[0].endswith(" nats per text")
    written = tmp_path / "run" / "samples" / "step-00000060.scores.txt"
    assert written.read_text("utf-8") == "accuracy 100.00\nmacro f1 100.00\n"


@pytest.mark.slow
def test_training_starts_from_a_masked_language_model(table, tmp_path):
    raw = {key: value for key, value in SMALL.items() if key not in ("data.source", "data.target")}
    steps = {"train.steps": 6, "train.validate_every": 6, "train.save_every": 6}
    first, files = tmp_path / "first", {"data.train": str(table), "data.valid": str(table)}
    trifold.train("demo-read", out=first, **raw, **steps, **files)
    own = {"tokenizer.file": str(first / "model"), "train.start_from": str(first)}
    few = {"train.steps": 2, "train.learning_rate": 1e-12, "train.warmup": 0, "train.validate_every": 2}
    trifold.train(
        "demo-read-packages", out=tmp_path / "second", **SMALL | own | few | files,
        **{"data.test": None, "train.save_every": 1},
    )  # fmt: skip
    before, after = (
        dict(trifold.load(tmp_path / run).model.named_parameters()) for run in ("first", "second")
    )
    shared = [name for name in before if not name.startswith(("heads.", "lm_head."))]
    assert shared
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model.shape": "encoder-decoder", "model.heads": None, "model.classifier_input": "first"},
            "model.shape",
        ),
        (
            {"model.shape": "decoder", "model.heads": None, "model.classifier_input": "pooler"},
            r"model: classifier_input: pooler needs pooler in heads",
        ),
        ({"data.valid": None}, "data.valid"),
        ({"data.target": "nothing"}, "nothing"),
        ({"model.problem_type": "regression"}, "problem_type"),
    ],
)
def test_contradictory_settings_are_errors(table, tmp_path, changes, words):
    settings = SMALL | {"data.train": str(table), "data.valid": str(table), "data.test": None} | changes
    with pytest.raises(trifold.errors.TrifoldError, match=words):
        trifold.train("demo-read-packages", out=tmp_path / "run", **settings)


def test_swapped_columns_are_pointed_out(tmp_path):
    path = tmp_path / "swapped.tsv"
    path.write_text("".join(f"pos\ttext {n}\nneg\tother {n}\n" for n in range(50)), encoding="utf-8")
    settings = SMALL | {"data.train": str(path), "data.holdout": 5, "data.valid": None, "data.test": None}
    with pytest.raises(DataError, match=r"2 different texts with 9. different labels; .* likely swapped"):
        trifold.train(
            "demo-read-packages", out=tmp_path / "run", **settings | {"data.source": 0, "data.target": 1}
        )


@pytest.fixture
def report_of(tmp_path):
    """The lines reported about the data of a file with this content, used for training and validation."""

    def read(content, **changes):
        path, lines, view = tmp_path / "rows.tsv", [], View()
        path.write_text(content, encoding="utf-8")
        files = {"data.train": str(path), "data.valid": str(path), "data.test": None}
        recipe = load_recipe(
            "demo-read-packages", SMALL | files | {"data.source": 0, "data.target": 1} | changes
        )
        view.say = lines.append
        with suppress(DataError):  # a label of the validation rows that is not in the training rows
            load_data(recipe, tmp_path / "tokenizer", view)
        return lines

    return read


@pytest.mark.parametrize(
    "names", [[f"label{n} {'x' * 99}" for n in range(100)], [f"name{n}" for n in range(30)]]
)
def test_few_of_many_labels_are_reported(report_of, names):
    lines = report_of("".join(f"text {n}\t{name}\n" for n, name in enumerate(names * 2)))
    (reported,) = (line for line in lines if line.startswith("labels: "))
    assert names[0][:20] in reported
    assert reported.endswith(f" … ({len(names)} labels)")
    assert 40 < len(reported) <= 80


DATA = "".join(f"text {n}\t{n % 2}\n" for n in range(8))


@pytest.mark.parametrize(
    ("first", "changes", "warns"),
    [
        ("foo\tbar\n", {}, True),
        ("foo\tbar\n", {"data.valid": None, "data.holdout": 4}, True),
        ("foo\tbar\n", {"data.header": True}, False),
        ("foo\tbar\n", {"data.header": False}, False),
        ("text\tlabel\n", {}, False),
        ("foo\t1\n", {}, False),
    ],
)
def test_a_label_of_the_first_row_only_is_reported(report_of, first, changes, warns):
    lines = report_of(first + DATA, **changes)
    assert any("'bar' is in row 1 only" in line for line in lines) == warns


def test_labels_of_held_out_rows_are_labels(report_of):
    lines = report_of(DATA + "text\trare\n", **{"data.valid": None, "data.holdout": 8})
    assert "labels: 0, 1, rare" in lines


def test_a_single_label_is_an_error(tmp_path):
    path = tmp_path / "one.tsv"
    path.write_text("text\tlabel\na b\tx\nb c\tx\n", encoding="utf-8")
    with pytest.raises(DataError, match="the only label is 'x'"):
        trifold.train(
            "demo-read-packages",
            out=tmp_path / "run",
            **SMALL | {"data.train": str(path), "data.valid": str(path), "data.test": None},
        )
