"""Replaced-token detection: labels and losses by hand, what is sampled, and the models of
transformers.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.objectives.common import random_model
from tests.recipes import ELECTRA, MASKS, weather_text
from torch.nn import functional as F

from trifold.errors import SettingsError
from trifold.hub import load_model
from trifold.nn import Inputs, ModelConfig
from trifold.objectives.replaced import ReplacedSettings, ReplacedTokens, generator_config, sample
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.annotation import annotate
from trifold.train import train
from trifold.train.data import load_data
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View

TEXTS = [
    "one two three four five six seven eight nine ten",
    "red green blue black white grey pink old new",
    "one red two green three blue",
]
EVERY = np.arange(3)


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings.parse(MASKS | {"min_frequency": 1})
    return train_tokenizer(TEXTS, settings)


@pytest.fixture
def make(tokenizer):
    """An objective with its examples, and a model with a generator, all of whose parameters are
    random.
    """

    def make(settings=None, **values):
        settings = settings or ReplacedSettings(rate=0.4)
        config = ModelConfig.parse(ELECTRA | {"vocab_size": tokenizer.vocab_size} | values)
        objective = ReplacedTokens(settings, tokenizer, config, 24)
        model = random_model(config)
        objective.add_modules(model)
        for parameter in model.generator.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
        return objective, objective.examples(annotate(tokenizer, TEXTS)), model

    return make


@torch.no_grad()
def test_labels_and_losses_follow_the_paper(make):
    """In float64, row by row: x_masked, a token drawn from p_G at each mask, x_corrupt, and both
    sums of section 2. The first mask gets its original token.
    """
    objective, examples, model = make()
    model = model.double()
    rows = [objective.mask(examples, row, draw=5) for row in EVERY]
    assert all((row.inputs[row.positions] == objective.tokenizer.mask_id).all() for row in rows)
    logits = [model.generator(Inputs(torch.from_numpy(row.inputs)[None]))[0] for row in rows]
    p = [model.generator.lm_head(states).softmax(-1) for states in logits]
    batch = objective.batch(examples, EVERY, draw=5)
    first, original = rows[0].positions[0], rows[0].targets[0]
    cumulative = p[0][first].cumsum(0)
    uniforms = batch.uniforms.double()
    uniforms[0] = cumulative[original] - p[0][first, original] / 2
    batch = replace(batch, uniforms=uniforms)
    numbers = iter(uniforms.tolist())
    generator_loss = detection_loss = 0.0
    labels = []
    for row, shares in zip(rows, p, strict=True):
        x = torch.from_numpy(row.original)
        corrupt = x.clone()
        for place in row.positions:
            generator_loss -= float(shares[place, x[place]].log())
            number = next(numbers)
            totals = accumulate(shares[place].tolist())
            corrupt[place] = next(token for token, total in enumerate(totals) if total > number)
        inputs = Inputs(corrupt[None])
        d = torch.sigmoid(model.heads["replaced"](model(inputs), inputs, None))[0, :, 0]
        for place in range(len(x)):
            labels.append(bool(corrupt[place] != x[place]))
            detection_loss -= float((d[place] if labels[-1] else 1 - d[place]).log())
    assert not labels[first] and sum(labels) > 5
    _, replaced = objective.fill_in(model.generator, model.generator(batch.inputs)[0], batch)
    assert replaced.tolist() == labels
    terms = objective.loss(model, batch)
    assert float(terms["tokens"].sum) == pytest.approx(generator_loss, rel=1e-9)
    assert float(terms["replaced"].sum) == pytest.approx(detection_loss, rel=1e-9)
    assert (terms["tokens"].weight, terms["replaced"].weight) == (1.0, 50.0)
    masks = sum(len(row.positions) for row in rows)
    assert objective.counts(batch) == {"tokens": masks, "replaced": len(labels)}


def test_tokens_are_sampled_with_their_probabilities():
    """Evenly spaced numbers select each token as often as its probability says."""
    p = torch.tensor([0.2, 0.0, 0.5, 0.25, 0.05], dtype=torch.float64)
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    sampled = sample(p.log().expand(1000, -1), uniforms)
    assert sampled.bincount(minlength=5).tolist() == [200, 0, 500, 250, 50]


def test_no_gradient_of_the_detection_reaches_the_generator(make):
    """It reaches the embeddings, which both share, through the model that reads them."""
    objective, examples, model = make()
    shared = {id(parameter) for parameter in model.encoder_embeddings.parameters()}
    own = [p for p in model.generator.parameters() if id(p) not in shared]
    terms = objective.loss(model, objective.batch(examples, EVERY, draw=5))
    terms["replaced"].sum.backward(retain_graph=True)
    assert {p.grad for p in own} == {None}
    table = model.encoder_embeddings.tokens.weight
    of_detection = table.grad.clone()
    assert of_detection.any()
    terms["tokens"].sum.backward()
    assert all(p.grad is not None and p.grad.any() for p in own if p.dim() > 1)
    assert not torch.equal(table.grad, of_detection)
    assert table is model.generator.lm_head.weight


@torch.no_grad()
def test_folders_are_those_of_transformers(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    objective, examples, model = make()
    objective.save_model(tmp_path, model.eval(), {})
    batch = objective.batch(examples, EVERY, draw=5)
    inputs, replaced = objective.fill_in(model.generator, model.generator(batch.inputs)[0], batch)
    found = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    filler = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    grid = inputs.grid()
    labels = inputs.packing.grid(
        F.pad(replaced, (0, inputs.tokens.shape[1] - len(replaced)))[None, :, None]
    )
    theirs = found(grid.tokens, attention_mask=grid.attend.long(), labels=labels[..., 0].long())
    torch.testing.assert_close(
        theirs.logits[grid.attend], objective.logits(model, inputs), rtol=1e-4, atol=1e-5
    )
    term = objective.loss(model, batch)["replaced"]
    torch.testing.assert_close(theirs.loss, term.sum / term.count, rtol=1e-4, atol=1e-5)
    masked = batch.inputs.grid()
    expected = filler(masked.tokens, attention_mask=masked.attend.long()).logits[grid.attend]
    ours = model.generator.lm_head(model.generator(batch.inputs))[0, : len(expected)]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "widths"), [(0.25, (32, 1, 128)), (0.5, (64, 2, 256)), (1.0, (128, 4, 512))]
)
def test_a_generator_is_narrower_and_not_shallower(size, widths):
    config = ModelConfig.parse(ELECTRA | {"d_model": 128, "n_heads": 4, "d_ff": 512})
    found = generator_config(config, ReplacedSettings(generator_size=size))
    assert (found.d_model, found.n_heads, found.d_ff) == widths
    assert (found.n_layers, found.embedding_width) == (config.n_layers, 12)


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few steps beside its text and a table of labels."""
    here = tmp_path_factory.mktemp("electra")
    (here / "text.txt").write_text("\n".join(TEXTS * 8) + "\n", encoding="utf-8")
    rows = [f"{text}\t{'ab'[n % 2]}" for n, text in enumerate(TEXTS * 8)]
    (here / "labels.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    values = {
        "task": {"kind": "replaced"}, "tokenizer": MASKS | {"min_frequency": 1}, "model": ELECTRA,
        "batch": {"tokens": 200}, "data": {"train": str(here / "text.txt"), "holdout": 0.2},
        "train": {"steps": 4, "warmup": 1, "validate_every": 2, "save_every": 4, "device": "cpu", "samples": 1},
    }  # fmt: skip
    (here / "electra.yaml").write_text(json.dumps(values), encoding="utf-8")
    done = run_command("train", str(here / "electra.yaml"), "--out", str(here / "run"))
    assert done.code == 0, done.err
    return here / "run"


def data_of(run, tmp_path, **changes):
    recipe = load_recipe(run.parent / "electra.yaml", changes)
    return load_data(recipe, tmp_path / "tokenizer", View())


def test_a_run_is_an_electra_whose_replaced_tokens_eval_counts(run):
    config = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["ElectraForPreTraining"]
    done = run_command("eval", str(run), "--json")
    assert done.code == 0, done.err
    scores = json.loads(done.out)["scores"]
    assert scores.keys() == {
        "accuracy",
        "precision",
        "recall",
        "f1",
        "auc",
        "generator_accuracy",
        "perplexity",
    }
    filled = run_command("predict", str(run / "model" / "generator"), "one <mask> three")
    assert filled.code == 0, filled.err


def test_a_classifier_starts_from_the_model_without_its_generator(run, tmp_path):
    start = f"start_from={run}"
    table = f"data.train={run.parent / 'labels.tsv'}"
    options = ["train.steps=2", "train.validate_every=2", "--out", str(tmp_path / "classes")]
    done = run_command("train", "classify", start, table, *options)
    assert done.code == 0, done.err
    assert not (tmp_path / "classes" / "model" / "generator").exists()
    ours, _ = load_model(run / "model")
    theirs, _ = load_model(tmp_path / "classes" / "model")
    shapes = {name: p.shape for name, p in theirs.named_parameters() if "encoder" in name}
    assert shapes == {name: p.shape for name, p in ours.named_parameters() if "encoder" in name}


def test_pretraining_continues_with_the_generator_of_the_run(run, tmp_path):
    model = new_model(data_of(run, tmp_path, start_from=str(run), **{"tokenizer.file": str(run)}))
    saved, _ = load_model(run / "model" / "generator")
    for name, parameter in model.generator.named_parameters():
        assert torch.equal(parameter, saved.get_parameter(name)), name
    smaller = {"start_from": str(run), "tokenizer.file": str(run), "task.generator_size": 0.5}
    with pytest.raises(SettingsError, match=r"task\.generator_size: the generator in"):
        new_model(data_of(run, tmp_path, **smaller))


def test_a_missing_generator_is_reported(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("generator"))
    done = run_command("eval", str(tmp_path / "run"))
    assert done.code == 1 and "the generator that replaces tokens is missing" in done.err


@pytest.mark.parametrize("key", ["train.sharding", "train.lora"])
def test_ways_of_training_that_have_no_second_model_are_errors(run, tmp_path, key):
    changes = {"train.sharding": "full"}
    if key == "train.lora":
        changes = {"train.lora": {"rank": 2}, "start_from": str(run), "tokenizer.file": str(run)}
    with pytest.raises(SettingsError, match=f"{key}: not supported by task.kind: replaced"):
        new_model(data_of(run, tmp_path, **changes))


@pytest.mark.slow
def test_the_model_learns_to_find_replaced_tokens(tmp_path):
    """In documents about one kind of weather, against a generator that learns, too."""
    (tmp_path / "text.txt").write_text(weather_text(random.Random(5)), encoding="utf-8")
    changes = {
        "data.train": str(tmp_path / "text.txt"), "data.holdout": 0.2, "batch.tokens": 400,
        "train.steps": 150, "train.validate_every": 150, "train.save_every": 150, "train.warmup": 4,
        "train.learning_rate": 0.003, "train.schedule": "constant", "train.precision": "float32",
    }  # fmt: skip
    sizes = {
        f"model.{key}": value for key, value in (ELECTRA | {"d_model": 32, "d_ff": 64}).items()
    }
    words = {f"tokenizer.{key}": value for key, value in MASKS.items()}
    outcome = train("electra", out=tmp_path / "run", view=View(), **changes, **sizes, **words)
    assert outcome.scores["auc"] > 70 and outcome.scores["f1"] > 30
