"""What the machine refuses while a run is under way, room on the disk or in memory: told by place and with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trifold.errors import CheckpointError, TrifoldError
from trifold.train.run_folder import RunFolder


@contextmanager
def trouble_told(folder: RunFolder) -> Iterator[None]:
    """The run can go on afterwards. Raises CheckpointError for a disk, TrifoldError for memory."""
    try:
        yield
    except OSError as error:
        place, reason = error.filename or folder.path, error.strerror or error
        raise CheckpointError(
            f"{place}: could not be written ({reason}); free some disk space and repeat the command with --resume auto"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise TrifoldError(
            f"{folder.path}: out of memory ({reason}); what was saved is there. Repeat the command with --resume auto "
            "and train.recompute=blocks, which needs less and learns the same; or begin another run with smaller "
            "batches (batch.tokens, with more train.accumulate) or with fewer train.workers"
        ) from error


def _lacks_memory(error: BaseException) -> bool:
    """Of Python or numpy, of a GPU, or of PyTorch's allocator on a CPU, which has no type of its own."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
