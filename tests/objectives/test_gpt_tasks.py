"""GPT's fine-tuning of 2018: start, delimiter and extract tokens, and the loss of the texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.command_line import run_command
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


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_pairs_in_both_orders_add_their_states(here, tmp_path, bias):
    """W (h1 + h2) + b, from the state of the last token of each order."""
    data, _ = prepare(here, tmp_path, task__both_orders=True, model__classifier_bias=bias)
    task = data.objective
    model = random_model(data.config)
    rows = np.array([1, 4])
    assert data.valid.lengths.shape == (len(WORDS) ** 2, 2)
    batch = task.batch(data.valid, rows)
    head = model.heads["sequence"].out_proj
    expected = []
    for row in rows:
        first, second = (data.bundle.valid.columns[name][row] for name in ("text", "pair"))
        orders = [(first, second), (second, first)]
        ids = [task.tokenizer.rows([one], [other])[0].ids for one, other in orders]
        state = sum(model(Inputs(torch.tensor([tokens])))[0, -1] for tokens in ids)
        expected.append(head.weight @ state + (head.bias if bias else 0))
    logits = task.logits(model, batch)
    torch.testing.assert_close(logits, torch.stack(expected), rtol=1e-4, atol=1e-5)
    term = task.loss(model, batch)["tokens"]
    assert term.count == task.counts(batch)["tokens"] == 2
    assert float(term.sum) == pytest.approx(
        float(F.cross_entropy(torch.stack(expected), batch.labels, reduction="sum")), rel=1e-4
    )


@pytest.mark.slow
def test_a_model_of_both_orders_does_not_tell_them_apart(here, tmp_path):
    scores = []
    for both in (True, False):
        folder = tmp_path / str(both)
        train(
            "gpt-classify",
            out=folder,
            view=RecordingView(),
            **changes(here, task__both_orders=both),
        )
        loaded = trifold.load(folder)
        texts, pairs = ["sun rain", "hail snow"], ["rain", "snow snow sun"]
        scores.append([
            [{label.label: label.score for label in row} for row in loaded.classify(*sides)]
            for sides in ((texts, pairs), (pairs, texts))
        ])  # fmt: skip
    (one, other), (first, second) = scores
    for row in range(2):
        assert one[row] == pytest.approx(other[row], abs=1e-6)
        assert first[row] != pytest.approx(second[row], abs=1e-6)
    done = run_command("eval", str(tmp_path / "True"), "--json")
    assert done.code == 0, done.err


def test_both_orders_need_pairs_and_a_linear_layer(here, tmp_path):
    (tmp_path / "single.tsv").write_text("text\tlabel\nsun\tx\nrain\ty\n", encoding="utf-8")
    data = dict.fromkeys(("data__train", "data__valid"), str(tmp_path / "single.tsv"))
    with pytest.raises(SettingsError, match=r"task\.both_orders: the rows have no second text"):
        prepare(here, tmp_path, task__both_orders=True, **data)
    with pytest.raises(SettingsError, match=r"task\.both_orders: adds states before a linear"):
        load_recipe(
            "gpt-classify",
            changes(here, task__both_orders=True, model__classifier_transform="tanh"),
        )


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
