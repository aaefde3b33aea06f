from __future__ import annotations

import json
import shlex
import sys

import pytest
import yaml

from trifold import errors
from trifold.train import Outcome

pytestmark = pytest.mark.slow


def test_train_prints_run_folder_and_usage(trifold, run, tmp_path):
    done = trifold(
        "train", "smoke", "train.steps=4", "train.log_every=2", "--out", str(tmp_path / "short")
    )
    assert done.code == 0
    assert f"trifold generate {tmp_path / 'short'}" in done.out
    assert f"{tmp_path / 'short' / 'model'} (only trifold loads it)" in done.out
    assert (
        "transformers cannot load this model" in done.err
        and "model.norm_placement=post" in done.err
    )
    assert "step 4/4" in done.err
    resolved = yaml.safe_load((tmp_path / "short" / "recipe.yaml").read_text("utf-8"))
    assert (resolved["train"]["steps"], resolved["train"]["log_every"]) == (4, 2)


def test_folder_with_a_space_is_quoted(trifold, monkeypatch, tmp_path):
    outcome = Outcome(tmp_path / "my run", 7, 1.0, {}, "steps", 0)
    (tmp_path / "my run" / "model").mkdir(parents=True)
    (tmp_path / "my run" / "model" / "config.json").write_text(
        '{"model_type": "marian"}', encoding="utf-8"
    )
    monkeypatch.setattr(sys.modules["trifold.train"], "train", lambda *_, **__: outcome)
    done = trifold("train", "smoke", "--out", str(tmp_path / "my run"))
    assert done.out.startswith(
        f"model:        {tmp_path / 'my run' / 'model'} (marian; transformers loads it, too)\n"
    )
    (line,) = (line for line in done.out.splitlines() if line.startswith("use it:"))
    assert shlex.split(line)[:5] == ["use", "it:", "trifold", "generate", str(tmp_path / "my run")]


def test_json_is_the_only_thing_on_standard_output(trifold, tmp_path):
    done = trifold("train", "smoke", "train.steps=2", "--out", str(tmp_path / "r"), "--json")
    report = json.loads(done.out)
    assert (done.code, report["steps"], report["stopped_by"], report["finished"]) == (
        0,
        2,
        "steps",
        True,
    )
    assert report["folder"] == str(tmp_path / "r")


def test_existing_run_is_never_replaced(trifold, tmp_path):
    out = ("--out", str(tmp_path / "r"))
    assert trifold("train", "smoke", "train.steps=2", *out).code == 0
    again = trifold("train", "smoke", "train.steps=2", *out)
    assert again.code == 2
    assert "--resume auto" in again.err
    more = trifold("train", "smoke", "train.steps=3", "--resume", "auto", "--json", *out)
    assert (more.code, json.loads(more.out)["steps"]) == (0, 3)


@pytest.mark.parametrize(
    "command", ["resume {run}", "resume {run}/recipe.yaml", "train {run} --resume auto"]
)
def test_a_run_is_continued_by_its_folder(trifold, tmp_path, command):
    run = tmp_path / "r"
    assert trifold("train", "smoke", "train.steps=2", "train.warmup=1", "--out", str(run)).code == 0
    more = trifold(*command.format(run=run).split(), "train.steps=3", "--json")
    assert more.code == 0, more.err
    report = json.loads(more.out)
    assert (report["steps"], report["folder"]) == (3, str(run))


@pytest.mark.parametrize("command", ["resume {run}", "train {run} --resume auto"])
@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("smoek", "; did you mean '{run}/smoke'?"),
        ("x", "; known runs: {run}/smoke"),
        ("smoke/model", "; known runs: {run}/smoke"),
    ],
)
def test_only_a_run_is_continued(trifold, tmp_path, command, name, end):
    (tmp_path / "smoke" / "model").mkdir(parents=True)
    (tmp_path / "smoke" / "recipe.yaml").touch()
    done = trifold(*command.format(run=tmp_path / name).split())
    assert (done.code, done.out) == (2, "")
    message = f"error: {tmp_path / name}: no such run (a run has a recipe.yaml){end}\n"
    assert done.err == message.format(run=tmp_path.as_posix())


def test_the_last_scores_fit_80_columns(trifold, run, monkeypatch):
    scores = {"perplexity": 2482.04, "bits_per_byte": 4.2839, "accuracy": 2.2, "macro_f1": 12.345}
    outcome = Outcome(run, 6, 1.0, scores, "steps", 0, 6)
    monkeypatch.setattr(sys.modules["trifold.train"], "train", lambda *_, **__: outcome)
    monkeypatch.setattr(errors, "COLUMNS", 80)
    first, second, *_ = trifold("train", "smoke").out.splitlines()
    assert max(len(first), len(second)) <= 80 and f"{first} {second.strip()}".endswith(
        " at step 6, the best"
    )


@pytest.mark.parametrize("code", [130, 143])
def test_interrupted_training_sets_the_exit_code(trifold, monkeypatch, tmp_path, code):
    outcome = Outcome(tmp_path, 7, 1.0, {}, "signal", code)
    monkeypatch.setattr(sys.modules["trifold.train"], "train", lambda *_, **__: outcome)
    assert trifold("train", "smoke", "--out", str(tmp_path / "r"))[:2] == (code, "")


def test_a_classifier_is_measured_on_named_columns(trifold, tmp_path):
    rows = [("good film", "pos"), ("bad film", "neg")] * 20
    for name, header in (("train.csv", "text,label"), ("other.csv", "Kommentar,Urteil")):
        (tmp_path / name).write_text(
            "\n".join([header, *map(",".join, rows)]) + "\n", encoding="utf-8"
        )
    (tmp_path / "c.yaml").write_text("task: {kind: classify}\n", encoding="utf-8")
    small = ["model.d_model=8", "model.n_layers=1", "train.steps=2", "tokenizer.vocab_size=40"]
    run, data = str(tmp_path / "c"), f"data.train={tmp_path / 'train.csv'}"
    assert trifold("train", str(tmp_path / "c.yaml"), data, "--out", run, *small).code == 0
    done = trifold(
        "eval", run, str(tmp_path / "other.csv"), "--source", "Kommentar", "--target", "Urteil"
    )
    assert done.code == 0 and "header: text 'Kommentar', label 'Urteil'" in done.err
