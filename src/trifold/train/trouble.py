"""What the machine refuses while a run is under way, room on the disk or in memory: told by place and with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trifold.errors import CheckpointError, TrifoldError
from trifold.train.run_folder import RunFolder

# What is to be done where a disk refuses; room is what else it lacks.
REMEDIES = {
    errno.ENOENT: "put the folder back, which was moved or removed,",
    errno.EACCES: "make it writable",
    errno.EROFS: "make the disk writable",
}
LACKING = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


@contextmanager
def trouble_told(folder: RunFolder) -> Iterator[None]:
    """The run can go on afterwards. Raises CheckpointError for a disk, TrifoldError for memory."""
    try:
        yield
    except OSError as error:
        place = os.fsdecode(error.filename or folder.path)
        remedy = REMEDIES.get(error.errno or 0, "free some disk space")
        raise CheckpointError(
            f"{place}: could not be written ({error.strerror or error}); {remedy} and repeat the command with "
            "--resume auto"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise TrifoldError(
            f"{folder.path}: out of memory ({reason}); what was saved is there, and --resume auto goes on from it. "
            "Less is needed with train.recompute=blocks, which is still the same run, or in another one with smaller "
            "batches (batch.tokens, with more train.accumulate) or fewer train.workers"
        ) from error


def _lacks_memory(error: BaseException) -> bool:
    """Of Python or numpy; of PyTorch, whose allocators and drivers have a type of their own only now and then."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(sign in str(error).lower() for sign in LACKING)
