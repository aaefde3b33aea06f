"""What the machine refuses while a run is under way, room on the disk or in memory: told by place and with a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trifold import disk
from trifold.errors import CheckpointError, TrifoldError
from trifold.train.run_folder import RunFolder

LACKING = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


@contextmanager
def trouble_told(folder: RunFolder) -> Iterator[None]:
    """The run can go on afterwards. Raises CheckpointError for a disk, TrifoldError for memory."""
    try:
        yield
    except OSError as error:
        place = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        raise CheckpointError(
            f"{place or folder.path}: could not be written ({error.strerror or error}); {disk.remedy(error)} and "
            "repeat the command with --resume auto"
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
