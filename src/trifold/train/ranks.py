"""The ranks of a run: a single process, or the base of those that `torchrun` starts, which are in
`distributed.py`.
"""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(Exception):
    """A signal requested the end of the run during work that need not be finished."""

    def __init__(self, signal: int | None = None) -> None:
        super().__init__(signal)
        self.signal = signal


class Ranks:
    """A single process; `ProcessGroup` is several. `local_rank` and `local_world` count the ranks
    of this machine.
    """

    rank = local_rank = 0
    world = local_world = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def command(self) -> str:
        """The command that starts the same number of processes."""
        return "trifold"

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of these numbers over all ranks, in float64."""
        return [float(value) for value in values]

    def gather(self, value: float) -> list[float]:
        """The number of each rank, in their order."""
        values = [0.0] * self.world
        values[self.rank] = value
        return self.sum(values)

    def all_reduce(self, vector: Tensor) -> None:
        """Replace a tensor by the sum of the tensors of all ranks, in place."""

    def broadcast(self, vector: Tensor) -> None:
        """Replace a tensor by that of rank 0, in place."""

    def first(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` on rank 0 and return its result, a JSON value, on all ranks.

        An exception is raised on rank 0; the other ranks raise OtherRankError, or Interrupted if
        rank 0 does.
        """
        return work(*args, **kwargs)

    def in_turn(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` on rank 0, then on all others. If one fails, all leave, and only that one
        reports the error.
        """
        return work(*args, **kwargs)

    def forward_signals(self, received: Callable[[], int | None]) -> None:
        """Forward the signal that `received` returns to rank 0 while this rank waits for it."""

    def forwarded_signal(self) -> int | None:
        """A signal that another rank received while waiting for this one."""
        return None


SINGLE = Ranks()
