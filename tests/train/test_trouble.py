from __future__ import annotations

import errno
import os

import pytest
import torch

from trifold.errors import CheckpointError, TrifoldError
from trifold.train.trainer import Trainer

pytestmark = pytest.mark.slow

MISSING = {
    "of a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …"),
    "of a CPU": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"),
    "of a driver": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    "of Python": MemoryError(),
}


def failing(monkeypatch, at: int, error: Exception) -> None:
    real = Trainer.update

    def update(self, batches, step, *more):
        if step == at:
            raise error
        return real(self, batches, step, *more)

    monkeypatch.setattr(Trainer, "update", update)


@pytest.mark.parametrize("what", MISSING)
def test_a_run_that_memory_fails_says_what_to_change_and_goes_on(run, state_of, monkeypatch, tmp_path, what):
    run("whole")
    with monkeypatch.context() as patch:
        failing(patch, 5, MISSING[what])
        with pytest.raises(
            TrifoldError, match=r"out of memory \(.+\).*--resume auto.*train.recompute=blocks"
        ):
            run()
    run(resume="auto", train__recompute="blocks")
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


def test_what_nobody_foresaw_is_not_dressed_up(run, monkeypatch):
    failing(monkeypatch, 5, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run()


@pytest.mark.parametrize(
    ("number", "place", "remedy"),
    [
        (errno.ENOSPC, "/some/file", "free some disk space and repeat"),
        (errno.ENOENT, b"/some/file", "put back what was moved or removed and repeat"),
        (errno.EACCES, "/some/file", "make it writable and repeat"),
        (errno.EIO, "/some/file", "check the disk for errors and repeat"),
    ],
)
def test_a_disk_that_refuses_is_told_by_its_place(run, monkeypatch, number, place, remedy):
    failing(monkeypatch, 5, OSError(number, os.strerror(number), place))
    told = rf"^/some/file: could not be written \({os.strerror(number)}\); {remedy} the command with --resume auto"
    with pytest.raises(CheckpointError, match=told):
        run()
