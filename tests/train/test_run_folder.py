from __future__ import annotations

import errno
import json
import os
import re
import signal

import pytest
import torch

import trifold
from trifold import disk
from trifold.errors import CheckpointError, DataError, SettingsError, TrifoldError, UsageError
from trifold.recipe import load_recipe
from trifold.train import checkpoint, train
from trifold.train.device import Machine, environment
from trifold.train.monitor import MetricsLog
from trifold.train.run_folder import RunFolder

pytestmark = pytest.mark.slow


def test_a_run_leaves_what_the_design_says(run):
    folder = run().folder
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "model/config.json", "model/model.safetensors",
                 "model/tokenizer.json", "model/generation_config.json", "samples/step-00000006.tsv",
                 "samples/step-00000012.tsv", "checkpoints/step-00000012/manifest.json"):  # fmt: skip
        assert (folder / name).is_file(), name
    assert not [
        path for path in folder.rglob("*") if path.suffix in (".partial", ".tmp", ".pt", ".bin", ".pkl")
    ]


def test_the_recipe_in_the_folder_is_the_whole_recipe(run, tiny):
    folder = run().folder
    assert load_recipe(folder / "recipe.yaml") == load_recipe("smoke", tiny)


def test_the_environment_says_what_the_run_depended_on(run):
    found = json.loads((run().folder / "environment.json").read_text("utf-8"))
    (session,) = found.pop("sessions")
    assert (session["from_step"], session["rejected"]) == (0, [])
    assert found == environment(Machine(torch.device("cpu"), torch.float32, workers=1))
    assert found["trifold"] == trifold.__version__ and found["torch"] == torch.__version__
    assert (found["device"], found["precision"], found["threads"]) == (
        "cpu",
        "float32",
        torch.get_num_threads(),
    )


def test_metrics_have_one_line_a_logged_step_and_one_a_validation(run):
    folder = run(train__log_every=2).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in lines if "valid/loss" in line] == [6, 12]
    train_line, valid_line = lines[0], next(line for line in lines if "valid/loss" in line)
    assert {"train/lr", "train/gradient_norm", "train/tokens_per_second", "seconds"} < train_line.keys()
    assert {"valid/bleu", "valid/chrf", "valid/exact_match"} < valid_line.keys()
    assert all(value == value for line in lines for value in line.values()), "no NaN"


def test_lines_past_a_step_and_half_lines_are_cut(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste', encoding="utf-8")
    folder.truncate_metrics(2)
    assert folder.metrics.read_text("utf-8") == '{"step": 1}\n{"step": 2}\n'


def test_a_metric_is_on_disk_as_soon_as_it_is_logged(tmp_path):
    log = MetricsLog(RunFolder(tmp_path), 0)
    log(4, {"train/loss": 1.5})
    assert json.loads((tmp_path / "metrics.jsonl").read_text("utf-8")) == {"step": 4, "train/loss": 1.5}
    log.close()


def test_tensorboard_gets_the_same_numbers(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run().folder
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    for name in ("train/loss", "valid/loss", "valid/bleu"):
        logged = [(line["step"], line[name]) for line in lines if name in line]
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in shown] == [step for step, _ in logged]
        assert [value for _, value in shown] == pytest.approx([value for _, value in logged], rel=1e-6)


def test_samples_say_source_reference_and_ours_and_the_scores_their_signatures(run, tiny):
    folder = run().folder
    rows = [
        line.split("\t")
        for line in (folder / "samples" / "step-00000012.tsv").read_text("utf-8").splitlines()
    ]
    assert rows[0] == ["source", "reference", "ours"]
    assert rows[1][:2] == ["twenty three", "2 3"]
    assert len(rows) == 1 + 28
    scores = (folder / "samples" / "step-00000012.scores.txt").read_text("utf-8")
    assert re.search(
        r"^BLEU [\d.]+ \(nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:", scores, re.M
    )


# --- what fails before the first step leaves nothing behind --------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data__train": "nowhere.tsv"}, DataError),
        ({"data__valid": None}, SettingsError),
        ({"tokenizer__vocab_size": 5}, SettingsError),
        ({"model__max_positions": 3, "tokenizer__kind": "char"}, TrifoldError),
    ],
)
def test_a_corrected_command_can_follow_at_once(run, tmp_path, changes, error):
    with pytest.raises(error):
        run(**changes)
    assert not (tmp_path / "run").exists()
    assert run(train__steps=3, train__validate_every=3, train__warmup=1).steps == 3


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/checkpoint-500/model.bin", "samples/a.wav",
                                  "tokenizer/tokenizer.json", "data.json", "environment.json"])  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"data__train": "nowhere.tsv"}])
def test_other_peoples_folders_are_not_taken_for_runs(run, tmp_path, name, changes):
    mine = tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        UsageError, match=rf"run: contains files \({mine.relative_to(tmp_path / 'run').parts[0]}\)"
    ):
        run(resume="auto", **changes)
    assert sorted(tmp_path.rglob("*")) == before
    assert mine.read_text("utf-8") == "precious"


def test_what_a_run_that_was_killed_at_once_leaves_is_no_obstacle(run, tmp_path):
    for name in ("checkpoints", "samples"):
        (tmp_path / "run" / name).mkdir(parents=True)
    for name in (".writable", ".lock", ".recipe.yaml.123.tmp"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(DataError):
        run(data__train="nowhere.tsv", resume="auto")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"checkpoints", "samples", ".lock"} <= left, "not made by the one that failed"
    assert "recipe.yaml" not in left
    assert run(resume="auto", train__steps=3).steps == 3


def test_what_lies_beside_a_run_is_not_touched(run, tmp_path):
    mine = [tmp_path / "run" / name for name in (".marked", "mine.txt", "other/run/recipe.yaml")]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious", encoding="utf-8")
    with pytest.raises(DataError):
        run(resume="auto", data__train="nowhere.tsv")
    assert run(resume="auto", train__steps=3).steps == 3
    assert [file.read_text("utf-8") for file in mine] == ["precious"] * 3


def test_an_empty_folder_is_left_as_it_was_found(run, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError):
        run(data__train="nowhere.tsv")
    assert list((tmp_path / "run").iterdir()) == []


def test_but_runs_that_exist_stay(run, tmp_path):
    run()
    recipe = (tmp_path / "run" / "recipe.yaml").read_bytes()
    (tmp_path / "run" / "tokenizer" / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        run(resume="auto")
    assert (tmp_path / "run" / "recipe.yaml").read_bytes() == recipe
    assert len(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")) == 4


# --- one process at a time -----------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_touches_nothing(run, interrupting, tmp_path):
    run(view=interrupting(5))
    first = RunFolder(tmp_path / "run")
    first.open(resume=True)
    (tmp_path / "run" / "checkpoints" / ".step-00000006.partial").mkdir()  # it is being saved just now
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(
        UsageError, match=r"run: another process is using this run and holds its lock, .*\.lock"
    ):
        run(resume="auto")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    first.close()
    assert run(resume="auto").steps == 12


def test_a_run_that_has_ended_in_any_way_has_let_go(run, interrupting, tmp_path):
    run(view=interrupting(5))
    with pytest.raises(SettingsError):
        run(resume="auto", model__d_ff=48)
    RunFolder(tmp_path / "run").open(resume=True)


@pytest.mark.skipif(os.name != "posix", reason="processes are copied")
def test_the_lock_of_a_process_goes_with_it(tmp_path):
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            folder = RunFolder(tmp_path / "run")
            folder.open(resume=True)
            os.write(tell, b"!")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(hear, 1) == b"!"
        with pytest.raises(UsageError, match="another process is using this run"):
            RunFolder(tmp_path / "run").open(resume=True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert RunFolder(tmp_path / "run").open(resume=True) == []


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(errno.ENOLCK, "No locks available")])
def test_where_files_cannot_be_locked_it_is_said(run, listening, monkeypatch, error):
    def acquire(self, timeout):
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    run(view=listening, train__steps=3)
    assert any("the file system has no locks" in line for line in listening.lines)


def test_a_file_in_the_way_is_a_wrong_use(run, tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UsageError, match=r"run: cannot be written .*choose another --out"):
        run()


def test_a_full_disk_is_said_with_the_place_and_the_remedy_and_the_run_goes_on_later(
    run, state_of, tmp_path, monkeypatch
):
    run("whole")
    write = disk.write
    writes = []

    def full(path, pieces):
        if path.name == "weights.safetensors":
            writes.append(path)
            if len(writes) == 3:
                raise OSError(28, "No space left on device")
        return write(path, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        with pytest.raises(
            CheckpointError, match=r"step-00000009: could not be written .*No space.*--resume auto"
        ):
            run()
    run(resume="auto")
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


def test_a_full_disk_while_logging_is_no_traceback_either(run, monkeypatch):
    def full(self, step, values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MetricsLog, "__call__", full)
    with pytest.raises(
        CheckpointError, match=r"run: could not be written \(No space left on device\); free some disk"
    ):
        run()


def test_the_default_folder_is_runs_and_the_name(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = train("smoke", **tiny | {"train.steps": 2, "train.warmup": 1})
    assert str(outcome.folder) == "runs/smoke"
    assert (tmp_path / "runs" / "smoke" / "model" / "config.json").is_file()
