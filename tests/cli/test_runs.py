"""`trifold runs` on folders that training wrote, and on damaged and foreign ones."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from trifold.cli import runs as module
from trifold.train.run_folder import LOCK

RECIPE = "name: {name}\ntask: {{kind: classify, best_by: {best_by}}}\ntrain: {{steps: 40}}\n"
VALID = [(20, 50.0, 0.9), (30, 75.5, 0.6), (40, 60.0, 0.5)]  # step, accuracy, loss


@pytest.fixture
def make_run(tmp_path):
    """Write the files of a run with some validations, and a session with the given values. A run
    that reached its last step has ended."""

    def make(name, *, best_by="accuracy", steps=(20, 30, 40), recipe="smoke", **session):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if 40 in steps:
            session.setdefault("stopped_by", "steps")
        if steps:
            checkpoint = folder / "checkpoints" / f"step-{steps[-1]:08d}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "manifest.json").write_text("{}", encoding="utf-8")
            (folder / "model").mkdir()
            (folder / "model" / "model.safetensors").touch()
        (folder / "recipe.yaml").write_text(
            RECIPE.format(name=recipe, best_by=best_by), encoding="utf-8"
        )
        lines = [
            {"step": step, "valid/loss": loss, "valid/accuracy": accuracy, "seconds": 6 * step}
            for step, accuracy, loss in VALID
            if step in steps
        ]
        (folder / "metrics.jsonl").write_text(
            "".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8"
        )
        sessions = [{"from_step": 0, **session}]
        (folder / "environment.json").write_text(
            json.dumps({"sessions": sessions}), encoding="utf-8"
        )
        return folder

    return make


@pytest.fixture
def list_runs(trifold, tmp_path):
    def list_runs(*options):
        done = trifold("runs", str(tmp_path / "runs"), "--json", *options)
        assert done.code == 0, done.err
        return {each["run"]: each for each in json.loads(done.out)}

    return list_runs


@pytest.mark.slow
def test_a_trained_run_is_listed_with_its_recipe_changes_score_and_time(trifold, tmp_path):
    folder = tmp_path / "runs" / "one"
    changes = ["train.steps=4", "model.d_model=16", "train.warmup=1", "train.validate_every=4"]
    trained = json.loads(trifold("train", "smoke", *changes, "--out", str(folder), "--json").out)
    (facts,) = json.loads(trifold("runs", str(tmp_path / "runs"), "--json").out)
    expected = {"train.steps": 4, "model.d_model": 16, "train.warmup": 1, "train.validate_every": 4}
    assert (facts["run"], facts["recipe"], facts["changed"], facts["state"]) == (
        "one",
        "smoke",
        expected,
        "finished",
    )
    assert (facts["step"], facts["best_step"], facts["error"]) == (4, 4, None)
    assert facts["seconds"] == pytest.approx(trained["seconds"], abs=0.02)
    assert facts["score"] == "loss" or facts["value"] == pytest.approx(
        trained["scores"][facts["score"]]
    )
    resumed = trifold("resume", str(folder), "train.steps=6")
    assert resumed.code == 0, resumed.err
    (facts,) = json.loads(trifold("runs", str(tmp_path / "runs"), "--json").out)
    assert (facts["changed"], facts["step"]) == (expected | {"train.steps": 6}, 6)


def test_the_best_validation_is_the_one_whose_weights_are_kept(make_run, list_runs):
    make_run("a")
    make_run("b", best_by="loss")
    found = list_runs()
    assert [found["a"][key] for key in ("score", "value", "best_step")] == ["accuracy", 75.5, 30]
    assert [found["b"][key] for key in ("score", "value", "best_step")] == ["loss", 0.5, 40]


def test_states(make_run, list_runs):
    make_run("whole")
    make_run("patient", steps=(20, 30), stopped_by="patience", seconds=200.0)
    make_run("interrupted", steps=(20, 30), stopped_by="signal")
    make_run("killed", steps=(20,))
    running = make_run("running", steps=(20,))
    with FileLock(running / LOCK):
        found = list_runs()
    states = {name: (each["state"], each["step"]) for name, each in found.items()}
    assert states == {
        "whole": ("finished", 40), "patient": ("finished", 30), "interrupted": ("stopped", 30),
        "killed": ("stopped", 20), "running": ("running", 20),
    }  # fmt: skip
    assert list_runs()["running"]["state"] == "stopped"
    assert (found["patient"]["seconds"], found["killed"]["seconds"]) == (200, 120)


@pytest.mark.parametrize("missing", ["validation", "checkpoint", "model", "end"])
def test_a_run_without_its_last_validation_checkpoint_or_model_is_not_finished(
    make_run, list_runs, missing
):
    folder = make_run("whole")
    match missing:
        case "validation":
            lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
            last = json.dumps({"step": 40, "train/loss": 1.0})
            (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], last, ""]), "utf-8")
        case "checkpoint":
            (folder / "checkpoints" / "step-00000040" / "manifest.json").unlink()
        case "model":
            (folder / "model" / "model.safetensors").unlink()
        case "end":
            (folder / "environment.json").write_text('{"sessions": [{}]}', "utf-8")
    (facts,) = list_runs().values()
    assert (facts["state"], facts["step"]) == ("stopped", 40)


def test_a_seed_of_64_bits_is_listed(make_run, list_runs):
    make_run("a", changed={"train.seed": 2**64 - 1})
    found = list_runs()["a"]
    assert (found["state"], found["changed"]) == ("finished", {"train.seed": 2**64 - 1})


def test_of_equal_scores_the_lower_loss_is_the_best_as_in_training(make_run, list_runs):
    lines = [(20, 50.0, 0.9), (30, 75.5, 0.6), (40, 75.5, 0.5), (50, 75.5, None)]
    for name, chosen in {"a": lines[:2], "b": lines}.items():
        folder = make_run(name, steps=(20, 30, 40))
        (folder / "metrics.jsonl").write_text(
            "".join(
                json.dumps({"step": step, "valid/loss": loss, "valid/accuracy": score}) + "\n"
                for step, score, loss in chosen
            ),
            encoding="utf-8",
        )
    found = list_runs("--sort", "score")
    assert [*found] == ["b", "a"]
    assert [(each["value"], each["best_step"]) for each in found.values()] == [
        (75.5, 40),
        (75.5, 30),
    ]


def test_a_run_whose_recipe_has_changed_is_not_finished(make_run, list_runs):
    """More steps were requested, and the process was killed while it read the data."""
    folder = make_run("a")
    digest = hashlib.sha256((folder / "recipe.yaml").read_bytes()).hexdigest()
    ended = {"stopped_by": "steps", "to_step": 40, "recipe": digest}
    (folder / "environment.json").write_text(json.dumps({"sessions": [ended]}), "utf-8")
    assert list_runs()["a"]["state"] == "finished"
    text = (folder / "recipe.yaml").read_text("utf-8").replace("steps: 40", "steps: 80")
    (folder / "recipe.yaml").write_text(text, "utf-8")
    assert list_runs()["a"]["state"] == "stopped"


def test_scores_that_are_no_numbers_are_not_the_best(make_run, list_runs):
    folder = make_run("a")
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    for score in ("NaN", "Infinity", "null"):
        first = f'{{"step": 10, "valid/loss": {score}, "valid/accuracy": {score}}}'
        (folder / "metrics.jsonl").write_text("\n".join([first, *lines, ""]), "utf-8")
        facts = list_runs()["a"]
        assert (facts["state"], facts["value"], facts["best_step"]) == ("finished", 75.5, 30)


SUMMARY = {"score": "accuracy", "mean": 75.5, "deviation": 0.0}


@pytest.mark.parametrize(
    "case", ["current", "stopped run", "other score", "missing run", "damaged"]
)
def test_a_mean_is_printed_of_the_runs_that_are_there(make_run, trifold, tmp_path, case):
    for name in ("seed-1", "seed-2"):
        make_run(name, **({"steps": (20, 30)} if case == "stopped run" else {}))
    names = ["seed-1", "seed-3" if case == "missing run" else "seed-2"]
    value = 70.0 if case == "other score" else 75.5
    runs = [{"run": name, "value": value} for name in names]
    text = json.dumps(SUMMARY | {"runs": runs})
    text = text[:-9] if case == "damaged" else text
    (tmp_path / "runs" / "summary.json").write_text(text, "utf-8")
    done = trifold("runs", str(tmp_path / "runs"))
    assert done.code == 0
    assert ("2 runs: accuracy 75.50 ± 0.00" in done.out) == (case == "current")
    assert ("summary.json: is not of these runs" in done.err) == (case != "current")


def test_newest_runs_come_first_and_best_ones_with_the_option(make_run, list_runs):
    make_run("old", started="2026-01-01T00:00:00Z")
    make_run("new", started="2026-03-01T00:00:00Z", steps=(20,))
    make_run("middle", started="2026-02-01T00:00:00Z", best_by="loss")
    make_run("empty", started="2025-02-01T00:00:00Z", steps=())
    assert [*list_runs()] == ["new", "middle", "old", "empty"]
    assert [*list_runs("--sort", "score")] == ["old", "new", "middle", "empty"]


def test_nested_runs_are_listed_but_not_the_parts_of_a_run(make_run, list_runs, trifold):
    outer = make_run("demo")
    make_run("demo/pretraining")
    make_run("group/one")
    (outer / "model" / "recipe.yaml").write_text("name: no run\n", encoding="utf-8")
    assert sorted(list_runs()) == ["demo", str(Path("demo/pretraining")), str(Path("group/one"))]


DAMAGE = {
    "not YAML": ("recipe.yaml", b"name: [", "not valid YAML"),
    "not UTF-8": ("recipe.yaml", b"name: \xff", "not UTF-8"),
    "no mapping": ("recipe.yaml", b"- 1\n", "mapping"),
    "no task": ("recipe.yaml", b"name: a\n", "does not write"),
    "a task that is a number": ("recipe.yaml", b"name: a\ntask: 3\ntrain: 4\n", "does not write"),
    "a step that is a list": ("metrics.jsonl", b'{"step": []}\n', "metrics.jsonl:1: step is []"),
    "a line without a step": ("metrics.jsonl", b"{}\n", "metrics.jsonl:1: step is None"),
    "a score that is a text": (
        "metrics.jsonl",
        b'{"step": 1, "valid/accuracy": "high"}\n',
        "metrics.jsonl:1: 'valid/accuracy' is 'high', not a number; remove the line",
    ),
    "sessions that are a number": ("environment.json", b'{"sessions": 3}', "does not write"),
    "changes that are a list": (
        "environment.json",
        b'{"sessions": [{"changed": [1]}]}',
        "does not write",
    ),
    "an end that is a list": (
        "environment.json",
        b'{"sessions": [{"seconds": []}]}',
        "does not write",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_run_is_one_line(make_run, list_runs, trifold, tmp_path, case):
    name, content, message = DAMAGE[case]
    make_run("whole")
    (make_run("broken") / name).write_bytes(content)
    found = list_runs()
    assert (found["whole"]["state"], found["broken"]["state"]) == ("finished", "damaged")
    assert message in found["broken"]["error"]
    done = trifold("runs", str(tmp_path / "runs"))
    assert done.code == 0 and "Traceback" not in done.err
    assert len(done.out.splitlines()) == 4 and message in done.err


def test_missing_files_and_incomplete_lines_are_no_crash(make_run, list_runs):
    with (make_run("killed", steps=(20, 30)) / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4')
    (make_run("no recipe") / "recipe.yaml").unlink()
    for name in ("metrics.jsonl", "environment.json"):
        (make_run(f"no {name}") / name).unlink()
    found = list_runs()
    assert {name: each["state"] for name, each in found.items()} == {
        "killed": "stopped", "no recipe": "damaged", "no metrics.jsonl": "stopped", "no environment.json": "stopped",
    }  # fmt: skip


def test_a_folder_that_cannot_be_read_is_one_line(make_run, list_runs, monkeypatch):
    make_run("whole")
    closed = make_run("closed")
    real = os.scandir

    def scandir(place):
        if os.fspath(place) == str(closed):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(
        module, "_read_run", lambda path, facts: scandir(path.path) if path.path == closed else None
    )
    found = list_runs()
    assert set(found) == {"whole", "closed"}
    assert "Permission denied" in found["closed"]["error"]


def test_the_table_has_a_few_printable_lines_of_80_columns_for_each_run(
    make_run, trifold, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    make_run(
        "a\x1b[31m\u202eb\nc",
        recipe="'名前名前名前名前名前名前'",
        changed={"data.train": "x\ty\x07" * 40},
    )
    make_run(
        "long" * 30, recipe="recipe" * 30, best_by="loss", stopped_by="signal", to_step=12345678
    )
    lines = trifold("runs", str(tmp_path / "runs")).out.splitlines()
    assert len(lines) <= 5 + 2 * 12
    assert lines[0].split() == ["run", "recipe", "best", "(step)", "min", "state"]
    assert ["run", "changed"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


def test_no_folder_is_wrong_usage_and_no_run_an_empty_list(trifold, tmp_path):
    done = trifold("runs", str(tmp_path / "none"))
    assert (done.code, done.out) == (2, "") and "no such folder" in done.err
    assert trifold("runs", str(tmp_path), "--json").out == "[]\n"


@pytest.mark.slow
def test_torch_is_not_imported(make_run, tmp_path):
    make_run("whole")
    code = f"import sys; from trifold.cli import main; main(['runs', {str(tmp_path)!r}]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "whole" in done.stdout and done.stdout.splitlines()[-1] == "False"


def test_the_names_of_files_are_those_of_training(tmp_path):
    from trifold.train.run_folder import RunFolder

    folder = RunFolder(tmp_path)
    names = (folder.recipe.name, folder.metrics.name, folder.environment.name, LOCK)
    assert names == (module.RECIPE, module.METRICS, module.ENVIRONMENT, module.LOCK)
