from __future__ import annotations

import errno
import os
import re
import signal

import pytest
import torch
from tests.train.runs import TINY, InterruptingView, assert_equal_runs

import trifold
from trifold import disk
from trifold.errors import CheckpointError, DataError, SettingsError, TrifoldError, UsageError
from trifold.folders import named
from trifold.jsonfiles import read_json
from trifold.recipe import load_recipe
from trifold.train import checkpoint, train
from trifold.train.device import Machine, environment
from trifold.train.metrics import MetricsLog
from trifold.train.monitor import View
from trifold.train.run_folder import RunFolder
from trifold.train.trainer import Trainer

pytestmark = pytest.mark.slow


def test_run_folder_contains_what_the_design_lists(finished_run):
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "model/config.json", "model/model.safetensors",
                 "model/tokenizer.json", "model/generation_config.json", "samples/step-00000006.tsv",
                 "samples/step-00000012.tsv", "checkpoints/step-00000012/manifest.json"):  # fmt: skip
        assert (finished_run / name).is_file(), name
    unwanted = {".partial", ".tmp", ".pt", ".bin", ".pkl"}
    assert [path for path in finished_run.rglob("*") if path.suffix in unwanted] == []


def test_recipe_in_the_folder_is_complete(finished_run):
    assert load_recipe(finished_run / "recipe.yaml") == load_recipe("smoke", TINY)


def test_environment_describes_machine_versions_and_sessions(finished_run):
    found = read_json(named(finished_run / "environment.json"))
    (session,) = found.pop("sessions")
    assert (session["from_step"], session["rejected"]) == (0, [])
    assert found == environment(Machine(torch.device("cpu"), torch.float32, workers=1))
    expected = {"device": "cpu", "precision": "float32", "threads": torch.get_num_threads()}
    assert (
        found.items()
        >= (expected | {"trifold": trifold.__version__, "torch": torch.__version__}).items()
    )


def test_truncation_removes_later_and_partial_lines(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste', encoding="utf-8")
    folder.truncate_metrics(2)
    assert folder.metrics.read_text("utf-8") == '{"step": 1}\n{"step": 2}\n'


def test_samples_have_source_reference_and_output_and_scores_their_signatures(finished_run):
    samples = finished_run / "samples"
    rows = [
        line.split("\t") for line in (samples / "step-00000012.tsv").read_text("utf-8").splitlines()
    ]
    assert rows[0] == ["source", "reference", "ours"]
    assert rows[1][:2] == ["twenty three", "2 3"]
    assert len(rows) == 1 + 28
    scores = (samples / "step-00000012.scores.txt").read_text("utf-8")
    signature = r"^BLEU [\d.]+ \(nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:"
    assert re.search(signature, scores, re.M)


def test_default_folder_is_named_after_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = train("smoke", **TINY | {"train.steps": 2, "train.warmup": 1})
    assert str(outcome.folder) == "runs/smoke"
    assert (tmp_path / "runs" / "smoke" / "model" / "config.json").is_file()


def test_progress_is_shown_unless_the_view_is_empty(tmp_path, capsys):
    for view, shown in ((None, True), (View(), False)):
        train(
            "smoke",
            out=tmp_path / str(shown),
            view=view,
            **TINY | {"train.steps": 2, "train.warmup": 1},
        )
        out, err = capsys.readouterr()
        assert (out, "step 2/2" in err, bool(err)) == ("", shown, shown)


# --- folders that exist ---------------------------------------------------------------------------


def test_folder_with_files_is_rejected(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError, match=r"contains files; .*resume=\"auto\""):
        run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/checkpoint-500/model.bin", "samples/a.wav",
                                  "tokenizer/tokenizer.json", "data.json", "environment.json"])  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"data__train": "nowhere.tsv"}])
def test_foreign_folder_is_not_resumed(run, tmp_path, name, changes):
    mine = tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("precious", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    first = mine.relative_to(tmp_path / "run").parts[0]
    with pytest.raises(UsageError, match=rf"run: contains files \({first}\)"):
        run(resume="auto", **changes)
    assert sorted(tmp_path.rglob("*")) == before
    assert mine.read_text("utf-8") == "precious"


def test_checkpoints_without_a_recipe_are_rejected(run, tmp_path):
    run(train__steps=3)
    (tmp_path / "run" / "recipe.yaml").unlink()
    with pytest.raises(UsageError, match=r"checkpoints but no recipe\.yaml"):
        run(resume="auto")


def test_path_of_a_file_is_a_usage_error(run, tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UsageError, match=r"run: cannot be written .*choose another `out`"):
        run()


def test_foreign_files_in_a_run_are_kept(run, tmp_path):
    mine = [tmp_path / "run" / name for name in (".marked", "mine.txt", "other/run/recipe.yaml")]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious", encoding="utf-8")
    with pytest.raises(DataError):
        run(resume="auto", data__train="nowhere.tsv")
    assert run(resume="auto", train__steps=3).steps == 3
    assert [file.read_text("utf-8") for file in mine] == ["precious"] * 3


# --- errors before the first step -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data__train": "nowhere.tsv"}, DataError),
        ({"data__valid": None, "model__shape": "encoder-decoder"}, SettingsError),
        ({"tokenizer__vocab_size": 5}, SettingsError),
        ({"model__max_positions": 3, "tokenizer__kind": "char"}, TrifoldError),
        ({"train__start_from": "nowhere/at/all"}, TrifoldError),  # fails after the data was read
    ],
)
def test_failed_start_leaves_no_folder(run, tmp_path, changes, error):
    with pytest.raises(error):
        run(**changes)
    assert not (tmp_path / "run").exists()
    assert run(train__steps=3, train__validate_every=3, train__warmup=1).steps == 3


def test_failed_start_leaves_an_empty_folder_empty(run, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError):
        run(data__train="nowhere.tsv")
    assert list((tmp_path / "run").iterdir()) == []
    assert run(train__steps=3, train__warmup=2).steps == 3


def test_run_that_was_killed_before_its_first_file_can_start_again(run, tmp_path):
    for name in ("checkpoints", "samples"):
        (tmp_path / "run" / name).mkdir(parents=True)
    for name in (".writable", ".lock", ".recipe.yaml.123.tmp"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(DataError):
        run(data__train="nowhere.tsv", resume="auto")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"checkpoints", "samples", ".lock"} <= left, "the failed start did not create them"
    assert "recipe.yaml" not in left
    assert run(resume="auto", train__steps=3).steps == 3


def test_failed_resume_keeps_the_run(run, tmp_path):
    run()
    recipe = (tmp_path / "run" / "recipe.yaml").read_bytes()
    (tmp_path / "run" / "tokenizer" / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        run(resume="auto")
    assert (tmp_path / "run" / "recipe.yaml").read_bytes() == recipe
    assert len(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")) == 4


# --- lock -----------------------------------------------------------------------------------------


def test_second_process_is_rejected_and_changes_nothing(run, tmp_path):
    run(view=InterruptingView(5))
    first = RunFolder(tmp_path / "run")
    first.open(resume=True)
    (tmp_path / "run" / "checkpoints" / ".step-00000006.partial").mkdir()  # as while it is saved
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    message = r"run: another process is using this run and holds its lock, .*\.lock"
    with pytest.raises(UsageError, match=message):
        run(resume="auto")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    first.close()
    assert run(resume="auto").steps == 12


def test_lock_is_released_after_an_interruption_and_an_error(run, tmp_path):
    run(view=InterruptingView(5))
    with pytest.raises(SettingsError):
        run(resume="auto", model__d_ff=48)
    RunFolder(tmp_path / "run").open(resume=True)


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_lock_of_a_killed_process_is_released(tmp_path):
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            folder = RunFolder(tmp_path / "run")
            folder.open(resume=True)
            os.write(sender, b"!")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(receiver, 1) == b"!"
        with pytest.raises(UsageError, match="another process is using this run"):
            RunFolder(tmp_path / "run").open(resume=True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert RunFolder(tmp_path / "run").open(resume=True) == []


@pytest.mark.parametrize(
    "error", [NotImplementedError(), OSError(errno.ENOLCK, "No locks available")]
)
def test_file_system_without_locks_is_reported(run, recorder, monkeypatch, error):
    def acquire(self, timeout):
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    run(view=recorder, train__steps=3)
    assert any("the file system has no locks" in line for line in recorder.lines)


# --- errors of disk and memory --------------------------------------------------------------------


def test_run_continues_after_a_full_disk_while_saving(run, finished_run, tmp_path, monkeypatch):
    write, writes = disk.write, []

    def full(path, pieces):
        if path.name == "weights.safetensors":
            writes.append(path)
            if len(writes) == 3:
                raise OSError(28, "No space left on device")
        return write(path, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        message = r"step-00000009: could not be written .*No space.*resume=\"auto\""
        with pytest.raises(CheckpointError, match=message):
            run()
    run(resume="auto")
    assert_equal_runs(tmp_path / "run", finished_run)


def test_full_disk_while_logging_is_an_error_with_a_remedy(run, monkeypatch):
    def full(self, step, values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MetricsLog, "__call__", full)
    message = r"run: could not be written \(No space left on device\); free some disk"
    with pytest.raises(CheckpointError, match=message):
        run()


@pytest.fixture
def fail_in_step_5(monkeypatch):
    def fail_in_step_5(error: Exception) -> None:
        real = Trainer.update

        def update(self, batches, step, *more):
            if step == 5:
                raise error
            return real(self, batches, step, *more)

        monkeypatch.setattr(Trainer, "update", update)

    return fail_in_step_5


@pytest.mark.parametrize(
    ("number", "place", "remedy"),
    [
        (errno.ENOSPC, "/some/file", "free some disk space and repeat"),
        (errno.ENOENT, b"/some/file", "put back what was moved or removed and repeat"),
        (errno.EACCES, "/some/file", "make it writable and repeat"),
        (errno.EIO, "/some/file", "check the disk for errors and repeat"),
    ],
)
def test_disk_error_names_the_file_and_the_remedy(run, fail_in_step_5, number, place, remedy):
    fail_in_step_5(OSError(number, os.strerror(number), place))
    reason = rf"could not be written \({os.strerror(number)}\)"
    with pytest.raises(
        CheckpointError, match=rf"^/some/file: {reason}; {remedy} the command with resume=\"auto\""
    ):
        run()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        MemoryError(),
    ],
    ids=["GPU", "CPU", "driver", "Python"],
)
def test_out_of_memory_error_names_settings_and_the_run_can_be_continued(
    run, finished_run, fail_in_step_5, monkeypatch, tmp_path, error
):
    fail_in_step_5(error)
    with pytest.raises(
        TrifoldError, match=r"out of memory \(.+\).*resume=\"auto\".*train.recompute=blocks"
    ):
        run()
    monkeypatch.undo()
    run(resume="auto", train__recompute="blocks")
    assert_equal_runs(tmp_path / "run", finished_run)


def test_other_errors_are_not_explained(run, fail_in_step_5):
    fail_in_step_5(RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run()
