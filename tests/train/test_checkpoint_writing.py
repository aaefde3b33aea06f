"""Checkpoints on disk: removal, replacement, and failures while they are written."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest
from tests.train.runs import assert_equal_runs, random_state

from trifold import disk
from trifold.errors import CheckpointError
from trifold.recipe import TrainSettings
from trifold.train import checkpoint
from trifold.train.trainer import Trainer


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps(folder):
    return [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(folder)]


def prune(folder, keep, every=1, *, upto=10**7, best=0, **settings):
    checkpoint.prune(
        folder, TrainSettings(keep_last=keep, save_every=every, **settings), upto, best
    )


# --- removal --------------------------------------------------------------------------------------


def test_prune_keeps_the_newest(save_checkpoints, tmp_path):
    save_checkpoints(2, 10, 4, 100)
    prune(tmp_path, keep=2)
    assert steps(tmp_path) == [10, 100]


def test_irregular_checkpoint_does_not_displace_a_regular_one(save_checkpoints, tmp_path):
    found = []
    for step in (10, 20, 23, 27, 30, 34):
        save_checkpoints(step)
        prune(tmp_path, keep=2, every=10)
        found.append(steps(tmp_path))
    assert found == [[10], [10, 20], [10, 20, 23], [10, 20, 27], [20, 30], [20, 30, 34]]
    assert [checkpoint.step_of(path) for path in checkpoint.regular_checkpoints(tmp_path, 10)] == [
        20,
        30,
    ]


def test_prune_keeps_multiples_of_keep_every_and_the_best(save_checkpoints, tmp_path):
    for step in (10, 20, 30, 40, 50, 60, 70):
        save_checkpoints(step)
        prune(tmp_path, 1, 10, upto=step, best=20, keep_every=30, keep_best=True)
    assert steps(tmp_path) == [20, 30, 60, 70]


def test_prune_ignores_later_steps(save_checkpoints, tmp_path):
    save_checkpoints(3, 6, 90)
    prune(tmp_path, 1, upto=6)
    assert steps(tmp_path) == [6, 90]


def test_list_contains_only_complete_checkpoints(save_checkpoints, tmp_path):
    save_checkpoints(5)
    (tmp_path / "step-00000009").mkdir()
    shutil.copytree(tmp_path / "step-00000005", tmp_path / "step-00000005-copy")
    assert steps(tmp_path) == [5]


def test_prune_keeps_folders_with_foreign_files(save_checkpoints, tmp_path):
    paths = save_checkpoints(1, 2, 3)
    (paths[0] / "remark.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "step-00000000").mkdir()
    (tmp_path / "step-00000000" / "model.pt").write_bytes(b"theirs")
    prune(tmp_path, 1)
    assert names(tmp_path) == ["step-00000000", "step-00000001", "step-00000003"]


def test_prune_keeps_unreadable_checkpoints(save_checkpoints, tmp_path, make_unreadable):
    paths = save_checkpoints(1, 2, 3)
    make_unreadable(paths[0])
    make_unreadable(paths[2])
    make_unreadable(paths[2] / "manifest.json")
    assert checkpoint.list_checkpoints(tmp_path) == paths
    assert checkpoint.load_newest(tmp_path).path == paths[1]
    prune(tmp_path, 1)
    assert all(path.is_dir() for path in paths)


# --- replacement ----------------------------------------------------------------------------------


def test_save_renames_a_foreign_folder_of_the_same_name(save_checkpoints, tmp_path):
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "step-00000007" / "model.pt").write_bytes(b"theirs")
    (path,) = save_checkpoints(7)
    assert checkpoint.load(path).progress == {"step": 7}
    assert (tmp_path / "step-00000007.foreign" / "model.pt").read_bytes() == b"theirs"


def test_save_renames_a_damaged_checkpoint_each_time(save_checkpoints, tmp_path):
    for number in range(4):
        (path,) = save_checkpoints(7)
        (path / "manifest.json").write_text(str(number), encoding="utf-8")
    save_checkpoints(7)
    renamed = (
        "step-00000007.foreign",
        *(f"step-00000007.foreign-{number}" for number in (2, 3, 4)),
    )
    assert [(tmp_path / name / "manifest.json").read_text("utf-8") for name in renamed] == list(
        "0123"
    )
    assert checkpoint.load_newest(tmp_path).rejected == []


# --- failures while writing -----------------------------------------------------------------------


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int) -> None:
    """Make the n-th call of a function fail with a full disk."""
    real, calls = getattr(owner, name), 0

    def failing(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


WRITES = [
    (disk, "make_folder", 1),
    *((disk, "put", call) for call in (1, 2, 3, 4, 5, 6)),
    *((disk, "flush", call) for call in (1, 2, 3, 4)),
    *((os, "fsync", call) for call in (1, 4, 5)),
    (disk, "flush_folder", 1),
    (disk, "rename", 1),
]


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), WRITES)
def test_failed_save_leaves_no_partial_checkpoint(
    save_checkpoints, tmp_path, monkeypatch, owner, name, call, earlier
):
    if earlier:
        save_checkpoints(3)
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, owner, name, call)
        message = r"step-00000007: could not be written .*free some disk space"
        with pytest.raises(CheckpointError, match=message):
            save_checkpoints(7)
    assert names(tmp_path) == before
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == before
    save_checkpoints(7)
    assert checkpoint.load(checkpoint.list_checkpoints(tmp_path)[-1]).progress == {"step": 7}


class Killed(BaseException):
    """Stands for the end of the process."""


def run_killed(name, function, action):
    """The process is killed in a function of `disk`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, name, function)
        with pytest.raises(Killed):
            action()


def test_killed_save_is_invisible_and_removed_later(save_checkpoints, tmp_path):
    def killed(*arguments):
        raise Killed

    run_killed("rename", killed, lambda: save_checkpoints(7))
    assert checkpoint.list_checkpoints(tmp_path) == []
    save_checkpoints(8)
    prune(tmp_path, keep=5)
    assert names(tmp_path) == ["step-00000008"]


def test_killed_removal_leaves_no_partial_checkpoint(save_checkpoints, tmp_path):
    def killed(path):
        next(path.glob("manifest.json")).unlink()
        raise Killed

    save_checkpoints(1, 2, 3)
    run_killed("remove", killed, lambda: prune(tmp_path, 2))
    assert steps(tmp_path) == [2, 3]
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


def test_killed_replacement_is_undone(tmp_path):
    real = disk.rename

    def killed(old, new):
        if old.name.endswith(".partial"):
            raise Killed
        real(old, new)

    checkpoint.save(tmp_path, random_state(7, fill=1.0))
    run_killed("rename", killed, lambda: checkpoint.save(tmp_path, random_state(7, fill=2.0)))
    assert steps(tmp_path) == []
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["step-00000007"]
    assert checkpoint.load(tmp_path / "step-00000007").weights["b"][0] == 1.0


def test_checkpoint_that_cannot_be_removed_stays_intact(save_checkpoints, tmp_path, monkeypatch):
    save_checkpoints(1, 2)
    with monkeypatch.context() as patch:
        fail_at(patch, disk, "rename", 1)
        prune(tmp_path, 1)
    paths = checkpoint.list_checkpoints(tmp_path)
    assert [checkpoint.load(path).progress["step"] for path in paths] == [1, 2]


@pytest.mark.slow
def test_failed_background_save_is_raised_by_the_next_step(run, tmp_path, monkeypatch):
    run("whole", train__async_save=True)
    real, failed = disk.rename, threading.Event()

    def full(old, new):
        if new.name == "step-00000006":
            failed.set()
            raise OSError(28, "No space left on device")
        real(old, new)

    update, later = Trainer.update, []

    def watched(self, *arguments):
        if failed.is_set():
            time.sleep(0.2)  # the save ends before this step
            later.append(arguments[1])
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", full)
        patch.setattr(Trainer, "update", watched)
        with pytest.raises(
            CheckpointError, match=r"step-00000006: could not be written .*No space"
        ):
            run(train__async_save=True)
    assert len(later) <= 1
    run(resume="auto", train__async_save=True)
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")
