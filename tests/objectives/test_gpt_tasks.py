"""GPT's fine-tuning of 2018: start, delimiter and extract tokens, and the loss of the texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.objectives.common import random_model
from tests.recipes import GPT2
from tests.train.runs import RecordingView
from torch.nn import functional as F

import trifold
from trifold.errors import SettingsError
from trifold.hub import load_model
from trifold.nn import Inputs
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, make_tokenizer
from trifold.train import train
from trifold.train.data import load_data

WORDS = ["sun", "rain", "snow", "hail"]
SIZES = {f"model.{key}": value for key, value in GPT2.items() if key != "preset"}
STEPS = dict.fromkeys(("train.steps", "train.validate_every", "train.save_every"), 4)
QUICK = STEPS | {"train.warmup": 1, "train.device": "cpu", "train.precision": "float32"}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Pairs with labels, choices, and a language model of the same words."""
    here = tmp_path_factory.mktemp("gpt")
    rows = [f"{a} {b}\t{b} {a}\t{'xy'[a < b]}" for a in WORDS for b in WORDS]
    table = "\n".join(["sentence1\tsentence2\tlabel", *rows, ""])
    (here / "pairs.tsv").write_text(table, encoding="utf-8")
    lines = [{"context": a, "choices": [a, b], "label": 0} for a in WORDS for b in WORDS if a != b]
    choices = "".join(json.dumps(line) + "\n" for line in lines)
    (here / "choices.jsonl").write_text(choices, encoding="utf-8")
    text = "\n".join([*rows, ""]).replace("\t", " ")
    (here / "text.txt").write_text(text, encoding="utf-8")
    train("causal", out=here / "gpt", view=RecordingView(), **QUICK, **SIZES,
          **{"data.train": str(here / "text.txt")})  # fmt: skip
    return here


def changes(here, **more):
    """Overrides of the recipe, whose keys have __ for the dot."""
    data = dict.fromkeys(("data.train", "data.valid"), str(here / "pairs.tsv"))
    more = {key.replace("__", "."): value for key, value in more.items()}
    return QUICK | data | {"start_from": str(here / "gpt")} | more


def prepare(here, folder, **more):
    view = RecordingView()
    data = load_data(load_recipe("gpt-classify", changes(here, **more)), folder, view)
    return data, "\n".join(view.lines)


def test_texts_stand_between_start_delimiter_and_extract(here, tmp_path):
    data, report = prepare(here, tmp_path)
    codec = data.objective.tokenizer
    row = data.valid.texts.tolist()[1]
    pieces = "".join(codec.pieces(row)).replace("▁", " ")
    assert pieces == "<s> sun rain<delimiter> rain sun<extract>"
    alone = codec.pieces(codec.rows(["sun"])[0].ids)
    assert (alone[0], alone[-1]) == ("<s>", "<extract>") and "<delimiter>" not in alone
    assert "no token stands between" not in report
    # In a text they are letters.
    assert codec.library.token_to_id("<extract>") not in codec.encode(["<extract>"])[0]
    _, report = prepare(here, tmp_path / "other", tokenizer__extract=False)
    assert "no token stands between the two texts of a pair; tokenizer.extract=true" in report


@torch.no_grad()
def test_the_loss_of_the_texts_is_that_of_each_next_token(here, tmp_path):
    data, _ = prepare(here, tmp_path)
    task = data.objective
    model = random_model(data.config)
    batch = task.batch(data.valid, np.array([1, 4]))
    terms = task.loss(model, batch)
    rows = [data.valid.texts.tolist()[row] for row in (1, 4)]
    assert terms["lm"].weight == 0.5
    assert terms["lm"].count == task.counts(batch)["lm"] == sum(len(row) - 1 for row in rows)
    table = model.decoder_embeddings.tokens.weight
    expected = 0.0
    for row in rows:
        tokens = torch.tensor([row])
        states = model(Inputs(tokens))[0]
        expected += float(F.cross_entropy(states[:-1] @ table.T, tokens[0, 1:], reduction="sum"))
    assert float(terms["lm"].sum) == pytest.approx(expected, rel=1e-5)
    without, _ = prepare(here, tmp_path, task__lm_loss=0.0)
    assert without.objective.loss(model, batch).keys() == {"tokens"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model__tie_lm_head": False}, "task.lm_loss: needs a language-model head that shares"),
        ({"tokenizer__kind": "word"}, "tokenizer.kind: has no effect, because start_from has a"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(here, more, message):
    with pytest.raises(SettingsError) as error:
        load_recipe("gpt-classify", changes(here, **more))
    assert message in str(error.value)


def test_an_encoder_has_no_loss_of_its_texts(here):
    values = {"task.lm_loss": 0.5, "data.train": str(here / "pairs.tsv")}
    with pytest.raises(SettingsError, match=r"task\.lm_loss: needs a decoder, and the model is"):
        load_recipe("classify", values)


def test_a_tokenizer_without_a_start_token_is_an_error(monkeypatch):
    codec = make_tokenizer(WORDS, TokenizerSettings(kind="word", min_frequency=1))
    del codec.names["bos_token"]
    monkeypatch.setattr("trifold.text.training.train_tokenizer", lambda *_: codec)
    with pytest.raises(SettingsError, match=r"tokenizer\.extract: the tokenizer has no start"):
        make_tokenizer(WORDS, TokenizerSettings(extract=True))


@pytest.mark.slow
def test_the_saved_classifier_equals_that_of_transformers(here, tmp_path):
    transformers = pytest.importorskip("transformers")
    view = RecordingView()
    train("gpt-classify", out=tmp_path / "run", view=view, **changes(here))
    assert any("tokenizer.extract: 2 new tokens" in line for line in view.lines)
    folder = tmp_path / "run" / "model"
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = trifold.load(folder)
    ids = reader("sun rain", "rain sun")["input_ids"]
    assert ids == ours.tokenizer.rows(["sun rain"], ["rain sun"])[0].ids
    tokens = torch.tensor([ids])
    with torch.no_grad():
        assert torch.allclose(theirs(tokens).logits, ours.logits(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_decoder_chooses_among_texts(here, tmp_path):
    """A GPT-2 of transformers has no such head, so the folder is one of ours."""
    data = dict.fromkeys(("data__train", "data__valid"), str(here / "choices.jsonl"))
    values = changes(here, task__kind="choose", **data)
    outcome = train("gpt-classify", out=tmp_path / "run", view=RecordingView(), **values)
    assert 0 <= outcome.scores["accuracy"] <= 100
    found = trifold.load(tmp_path / "run").choose("sun", ["sun", "rain"])
    assert sum(label.score for label in found) == pytest.approx(1, abs=1e-5)
    # The head of choices is loaded only where a family has one.
    model, _ = load_model(here / "gpt" / "model", heads=["choice"])
    assert model.config.chosen_heads == ("lm",)
