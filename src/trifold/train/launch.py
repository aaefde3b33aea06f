"""The ranks of a run: those that `torchrun` started, or a single process."""

import os
from contextlib import AbstractContextManager, nullcontext

from trifold.train.ranks import SINGLE, Ranks


def join_ranks() -> AbstractContextManager[Ranks]:
    """The ranks that `torchrun` started, or a single process. Raises UsageError if
    torch.distributed is in use.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return nullcontext(SINGLE)
    # Imported late, because a single process does not need the process group of PyTorch.
    from trifold.train.distributed import join_group

    return join_group()
