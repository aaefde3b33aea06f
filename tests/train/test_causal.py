"""A language model from a recipe to a folder: the laws of a run hold for it as they do for a translation."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from tests.command_line import run_command

from trifold.errors import SettingsError
from trifold.pipeline import load
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data

pytestmark = pytest.mark.slow

RECIPE = {
    "task": {"kind": "causal"},
    "data": {"cut": "windows", "documents": "blank", "holdout": 0.2},
    "tokenizer": {"kind": "char", "vocab_size": 40},
    "model": {
        "preset": "gpt2",
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "d_ff": 32,
        "max_positions": 24,
        "dropout": 0.1,
        "attention_dropout": 0.0,
    },
    "batch": {"tokens": 200},
    "train": {
        "schedule": "constant",
        "learning_rate": 0.01,
        "warmup": 4,
        "precision": "float32",
        "device": "cpu",
        "steps": 24,
        "validate_every": 8,
        "save_every": 4,
        "keep_last": 4,
        "log_every": 1,
        "samples": 2,
    },
    "generate": {"max_new_tokens": 8},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe file beside a text of forty short documents of words, some longer than the model reads at once."""
    folder, draw = tmp_path_factory.mktemp("causal"), random.Random(5)
    words = ["sun", "rain", "snow", "hail", "fog"]
    documents = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    values = {**RECIPE, "data": RECIPE["data"] | {"train": str(folder / "text.txt")}}
    (folder / "weather.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return folder / "weather.yaml"


@pytest.fixture(scope="module")
def trained(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "weather"
    train(recipe, out=folder)
    return folder


# --- the laws of a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "workers"), [("float32", 1), ("bfloat16", 2)])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    recipe, interrupting, state_of, tmp_path, precision, workers
):
    changes = {"train.precision": precision, "train.workers": workers}
    train(recipe, out=tmp_path / "whole", **changes)
    for stop in (3, 8, 17):  # between checkpoints, while validating, in a later epoch
        outcome = train(recipe, out=tmp_path / "run", resume="auto", view=interrupting(stop), **changes)
        assert (outcome.steps, outcome.stopped_by) == (stop, "signal")
    train(recipe, out=tmp_path / "run", resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert theirs["progress"]["epoch"] >= 2
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if ours[key] != theirs[key]] == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_saves_and_the_run_goes_on(recipe, tmp_path):
    endless = ["train.steps=1000000", "train.validate_every=1000000", "train.save_every=1000000"]
    command = [sys.executable, "-c", "import sys; from trifold.cli import main; sys.exit(main())"]
    process = subprocess.Popen(
        [*command, "train", str(recipe), *endless, "--out", str(tmp_path / "run")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    metrics, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < end, "it never began"
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "continue with: trifold train" in errors
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    more = run_command("train", str(recipe), *endless[1:], f"train.steps={step + 2}", "--out", str(tmp_path / "run"),
               "--resume", "auto", "--json")  # fmt: skip
    assert more.code == 0, more.err
    assert json.loads(more.out)["steps"] == step + 2
    assert json.loads(more.out)["scores"].keys() == {"perplexity", "bits_per_byte", "accuracy"}


def test_it_learns(recipe, tmp_path):
    outcome = train(recipe, out=tmp_path / "run", **{"train.steps": 150, "train.validate_every": 50})
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    losses = [line["valid/loss"] for line in lines if "valid/loss" in line]
    assert losses[-1] < losses[0] < 2.7  # nats; there are some fifteen characters
    assert outcome.scores["accuracy"] > 50
    assert outcome.scores["bits_per_byte"] < 1.6


# --- what is said --------------------------------------------------------------------------------------------


def test_what_was_read_and_how_it_is_cut_is_said(recipe, listening, tmp_path):
    prepared = load_data(load_recipe(recipe), tmp_path / "tokenizer", listening)
    said = "\n".join(listening.lines)
    assert "text.txt: 40 documents" in said
    assert (
        "documents have more than 24 tokens: split into pieces of 24, at other positions in each epoch"
        in said
    )
    assert "an epoch: " in said and " pieces, " in said and " tokens, " in said and "vocabulary " in said
    assert prepared.config.vocab_size == prepared.objective.tokenizer.vocab_size
    one, two, again = prepared.examples(0), prepared.examples(1), prepared.examples(0)
    assert one.chunks.starts.tolist() == again.chunks.starts.tolist() != two.chunks.starts.tolist()
    assert one.chunks.sizes.sum() == two.chunks.sizes.sum()


def test_what_is_dropped_or_never_asked_for_is_counted(recipe, listening, tmp_path):
    changes = {"data.cut": "drop", "task.begin": False, "task.end": False}
    load_data(load_recipe(recipe, changes), tmp_path / "tokenizer", listening)
    said = "\n".join(listening.lines)
    assert "left out, with " in said
    assert "the first token of each of 32 documents is never a label" in said


def test_samples_are_written_a_row_a_line(trained):
    (first, *_) = sorted((trained / "samples").glob("*.tsv"))
    head, *lines = first.read_text("utf-8").splitlines()
    assert head == "prompt\tours"
    assert len(lines) == 2
    assert all(line.count("\t") == 1 for line in lines)


def test_a_model_of_another_shape_is_refused_before_anything_is_read(recipe, listening, tmp_path):
    with pytest.raises(SettingsError, match=r"model\.shape: encoder does not support task\.kind: causal"):
        load_data(load_recipe(recipe, {"model.shape": "encoder"}), tmp_path, listening)
    with pytest.raises(SettingsError, match=r"decoder does not support task\.kind: translate"):
        load_data(load_recipe("smoke", {"model.shape": "decoder"}), tmp_path, listening)
    with pytest.raises(SettingsError, match=r"model\.logit_soft_cap: "):
        load_data(load_recipe(recipe, {"model.logit_soft_cap": 30.0}), tmp_path, listening)
    with pytest.raises(SettingsError, match=r"data\.valid: no validation data; .*data\.holdout=0\.1"):
        load_data(load_recipe(recipe, {"data.holdout": 0}), tmp_path, listening)


# --- what comes out ------------------------------------------------------------------------------------------


def test_the_folder_is_gpt2s_and_the_reference_gives_the_same_logits(trained):
    from transformers import AutoModelForCausalLM

    theirs, mine = AutoModelForCausalLM.from_pretrained(trained / "model").eval(), load(trained)
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    tokens = torch.randint(4, mine.config.vocab_size, (3, 24))
    with torch.no_grad():
        assert torch.allclose(mine.logits(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_eval_measures_the_validation_text_again(trained):
    last = [json.loads(line) for line in (trained / "metrics.jsonl").read_text("utf-8").splitlines()][-1]
    told = run_command("eval", str(trained), "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    best = min(
        json.loads(line).get("valid/loss", 99.0)
        for line in (trained / "metrics.jsonl").read_text("utf-8").splitlines()
    )
    assert found["loss"] == pytest.approx(best, rel=1e-4)
    assert found["scores"].keys() == {"perplexity", "bits_per_byte", "accuracy"}
    assert last["step"] == 24


def test_eval_of_a_file_that_is_named(trained, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("sun rain\n\nfog snow sun\n", encoding="utf-8")
    told = run_command("eval", str(trained), str(text))
    assert told.code == 0, told.err
    assert [line.split(" ")[0] for line in told.out.splitlines()] == [
        "loss",
        "perplexity",
        "bits",
        "accuracy",
    ]
    assert "2 documents" in told.err
    # A model that belongs to no run: the same text as one document, read as it stands.
    (tmp_path / "model").symlink_to(trained / "model")
    assert run_command("eval", str(tmp_path / "model"), str(text), "--json").code == 0
    for options in (("--tokenize", "13a"), ("--num-beams", "2"), ("--split", "train")):
        assert run_command("eval", str(trained), *options).code == 2


def test_generate_and_show_work_on_the_run(trained):
    told = run_command("generate", str(trained), "sun ", "--seed", "1", "--temperature", "0.8")
    assert (told.code, told.err) == (0, "")
    assert run_command("show", str(trained)).code == 0


# --- text on the disk ----------------------------------------------------------------------------------------


def test_from_a_cache_it_learns_and_resumes_to_the_bit(recipe, interrupting, listening, state_of, tmp_path):
    changes = {"data.cache": str(tmp_path / "cache"), "data.documents": "blank"}
    train(recipe, out=tmp_path / "whole", view=listening, **changes)
    assert sum("built in" in line for line in listening.lines) == 2  # what is learnt, and what is held out
    assert any("no padding" in line for line in listening.lines)
    for stop in (3, 17):
        train(recipe, out=tmp_path / "run", resume="auto", view=interrupting(stop), **changes)
    train(recipe, out=tmp_path / "run", resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert theirs["progress"]["epoch"] >= 2
    assert [key for key in theirs if ours[key] != theirs[key]] == []
    assert len([entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]) == 2
    told = run_command("eval", str(tmp_path / "run"), "--json")
    assert told.code == 0, told.err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    best = min(json.loads(line).get("valid/loss", 99.0) for line in lines)
    assert json.loads(told.out)["loss"] == pytest.approx(best, rel=1e-4)


def test_what_no_cache_serves_is_refused(recipe, listening, tmp_path):
    cache = {"data.cache": str(tmp_path / "cache")}
    with pytest.raises(SettingsError, match=r"data\.cut: drop is not supported with data\.cache"):
        load_data(load_recipe(recipe, cache | {"data.cut": "drop"}), tmp_path, listening)
    with pytest.raises(
        SettingsError, match=r"data\.holdout: a number of documents \(8\) cannot be held out of a cache"
    ):
        load_data(load_recipe(recipe, cache | {"data.holdout": 8}), tmp_path, listening)
    with pytest.raises(
        SettingsError, match=r"data\.cache: a task of kind translate reads its text into memory"
    ):
        load_data(load_recipe("smoke", cache), tmp_path, listening)
