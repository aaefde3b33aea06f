"""Who this process is among those of a run, and how they agree.

One process is a whole run. Under `torchrun` there are several, its ranks: they make the same steps, rank 0 alone writes
and speaks. Two ways lead from one to another. Sums go through the process group, where all ranks meet: gloo for what
lies on a CPU, NCCL for what lies on a GPU. What rank 0 decides alone, and may take its time for (a refusal, a
validation, a file on the disk), goes through the store that the ranks have found each other by: the others wait for it
without a time limit, and with an ear for signals.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from trifold.errors import OtherRankError, UsageError

T = TypeVar("T")

# How long the ranks wait for one another where they meet. Losing one is noticed at once, by its closed connection.
PATIENCE = timedelta(minutes=30)
PAUSES = 0.002, 0.1  # seconds between two looks at the store, the first and the longest
# After how many looks without a sign of life rank 0 is given up: native code may hold it for long. Sooner where a
# signal has come, as it does from torchrun when a rank has gone. Looks, not seconds: whoever is frozen does not look.
SIGNS_OF_LIFE = 0.25  # seconds from one to the next
MOST_LOOKS, MOST_LOOKS_WHEN_ASKED = 6000, 30
LAST_LOOKS = 50  # of rank 0 that leaves, for others who have not heard yet why


class Stopped(Exception):
    """A signal has asked for the end while something was done that need not be finished."""

    def __init__(self, signal: int | None = None) -> None:
        super().__init__(signal)
        self.signal = signal


class Ranks:
    """One process alone; `Group` is several. `rank` of `world`, and on this machine `local` of `beside`."""

    rank = local = 0
    world = beside = 1

    @property
    def speaks(self) -> bool:
        """Whether this is rank 0, which writes and says what there is to say."""
        return self.rank == 0

    @property
    def command(self) -> str:
        """What starts as many."""
        return "trifold"

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of these numbers over all ranks, in float64; the same on all."""
        return [float(value) for value in values]

    def add_up(self, vector: Tensor) -> None:
        """Make a tensor the sum of those of all ranks, in place."""

    def take_first(self, vector: Tensor) -> None:
        """Make a tensor that of rank 0, in place."""

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, for all: plain values, as JSON has them.

        What it raises, rank 0 raises; the others raise OtherRankError, or Stopped where it does.
        """
        return work()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Rank 0 does it, then the others do, each for itself. Where one fails all leave, and it alone says why."""
        return work()

    def heed(self, heard: Callable[[], int | None]) -> None:
        """From now on, what `heard` gives (a signal) is passed on to rank 0 while this rank waits for it."""

    def heard_elsewhere(self) -> int | None:
        """A signal that another rank has heard while it waited for this one."""
        return None


ALONE = Ranks()


class Group(Ranks):
    """The ranks that `torchrun` has started, found through the environment that it gives them."""

    def __init__(self, store: Any, environment: Mapping[str, str] = os.environ) -> None:
        self.rank, self.world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.local = int(environment.get("LOCAL_RANK", self.rank))
        self.beside = int(environment.get("LOCAL_WORLD_SIZE", self.world))
        self._store, self._told, self._passed_on, self._looked = store, 0, False, 0.0
        self._heard: Callable[[], int | None] = lambda: None

    @property
    def command(self) -> str:
        machines = "" if self.beside == self.world else f"--nnodes {self.world // self.beside} … "
        return f"torchrun {machines}--nproc-per-node {self.beside} -m trifold"

    def total(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
        self.add_up(sums)
        return sums.tolist()

    def add_up(self, vector: Tensor) -> None:
        with together():
            dist.all_reduce(vector)

    def take_first(self, vector: Tensor) -> None:
        with together():
            dist.broadcast(vector, 0)

    def first(self, work: Callable[[], T]) -> T:
        self._told += 1
        key = f"told {self._told}"
        if not self.speaks:
            told: T = self._wait_for(key)
            return told
        try:
            result = work()
        except Stopped as stopped:
            self._tell_last(key, {"stopped": stopped.signal})
            raise
        except BaseException as error:
            self._tell_last(key, {"failed": str(error), "exit_code": getattr(error, "exit_code", 1)})
            raise
        self._tell(key, {"gives": result})
        return result

    def _tell(self, key: str, what: Mapping[str, Any]) -> None:
        with together():
            self._store.set(key, json.dumps(what))

    def _tell_last(self, key: str, what: Mapping[str, Any]) -> None:
        """And leave when all have heard it, or some do not come to hear it: the store may be this very process's."""
        with suppress(OtherRankError):
            self._tell(key, what)
            for _ in range(LAST_LOOKS):
                if self._store.add("last heard", 0) >= self.world - 1:
                    return
                time.sleep(PAUSES[1])

    def _wait_for(self, key: str) -> Any:
        pause, longest = PAUSES
        looks, last = 0, b""
        with together():
            while not self._store.check([key]):
                number = self._heard()
                if number is not None and not self._passed_on:
                    self._store.set("heard", str(number))
                    self._passed_on = True
                time.sleep(pause)
                pause = min(1.5 * pause, longest)
                sign = self._store.get("life") if self._store.check(["life"]) else b""
                looks, last = (looks + 1, last) if sign == last else (0, sign)
                if looks > (MOST_LOOKS if number is None else MOST_LOOKS_WHEN_ASKED):
                    raise OtherRankError("rank 0 has gone")
            told = json.loads(self._store.get(key))
            if "gives" not in told:
                self._store.add("last heard", 1)
        if "stopped" in told:
            raise Stopped(told["stopped"])
        if "failed" in told:
            raise OtherRankError(f"rank 0: {told['failed']}", told["exit_code"])
        return told["gives"]

    @contextmanager
    def alive(self) -> Iterator[None]:
        """While inside, rank 0 gives signs of life."""
        over = threading.Event()

        def live() -> None:
            number = 0
            with suppress(RuntimeError):
                while not over.wait(SIGNS_OF_LIFE):
                    number += 1
                    self._store.set("life", str(number))

        if self.speaks:
            threading.Thread(target=live, name="signs of life", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def in_turn(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        failure: Exception | None = None
        self.first(lambda: done.append(work()))
        if not self.speaks:
            try:
                done.append(work())
            except Exception as error:
                failure = error
        here = [0.0, 0.0]  # failed, and left at the wish of this signal
        if failure is not None:
            here = [0.0, float(failure.signal or 0)] if isinstance(failure, Stopped) else [1.0, 0.0]
        everywhere = self.total(
            [x for rank in range(self.world) for x in (here if rank == self.rank else (0, 0))]
        )
        failed, signals = everywhere[::2], everywhere[1::2]
        if any(failed):
            culprit = failed.index(1.0)
            if failure is not None and culprit == self.rank:
                raise failure
            raise OtherRankError(f"rank {culprit} failed")
        if any(signals):
            raise Stopped(int(max(signals)))
        return done[0]

    def heed(self, heard: Callable[[], int | None]) -> None:
        self._heard = heard

    def heard_elsewhere(self) -> int | None:
        now = time.monotonic()
        if now < self._looked + PAUSES[1]:
            return None
        self._looked = now
        with together():
            return int(self._store.get("heard")) if self._store.check(["heard"]) else None


@contextmanager
def together() -> Iterator[None]:
    """What goes wrong between the ranks is that one of them has gone, and it has said why, or could not."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(
            error
        ):  # of NCCL and the store; of gloo
            raise
        raise OtherRankError(
            "another rank has gone; what it said, or torchrun says of it, tells why; go on with --resume auto",
            reported=False,
        ) from error


def _meeting(store: Any, rank: int, world: int) -> str:
    """A name for this meeting of the ranks that no earlier one has had.

    The store may outlive the ranks: those that torchrun starts again find in it what the killed ones have left. So each
    leaves a number of its own; rank 0 calls out those that it sees; it begins when all have heard theirs.
    """
    own = secrets.token_hex(8)
    store.set(f"here {rank}", own)
    end = time.monotonic() + PATIENCE.total_seconds()
    with together():
        while time.monotonic() < end:
            everyone = [f"here {other}" for other in range(world)]
            if rank == 0 and store.check(everyone):
                store.set("called", " ".join(store.get(key).decode() for key in everyone))
            called = store.get("called").decode() if store.check(["called"]) else ""
            name = hashlib.sha256(called.encode()).hexdigest()
            if called.split(" ")[rank : rank + 1] == [own]:
                store.set(f"{name} heard by {rank}", "")
                if rank == 0 and store.check([f"{name} heard by {other}" for other in range(world)]):
                    store.set(f"{name} begins", "")
                if store.check([f"{name} begins"]):
                    return name
            time.sleep(PAUSES[0])
    raise OtherRankError(f"rank {rank}: not all of {world} ranks have come within {PATIENCE}")


_joined: Ranks | None = None  # while a run is under way, so that joining once more changes nothing
_joinings = 0
_store: Any = None


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks of this run, until the block ends: those that `torchrun` has started, or one alone.

    Raises UsageError where somebody else uses torch.distributed already.
    """
    global _joined, _joinings, _store
    if _joined is not None:
        yield _joined
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    if dist.is_initialized():
        raise UsageError("torch.distributed is in use already; trifold joins the ranks of torchrun itself")
    if _store is None:
        _store, _, _ = next(iter(rendezvous("env://", timeout=PATIENCE)))
    _joinings += 1
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = PrefixStore(_meeting(PrefixStore(f"trifold {_joinings}", _store), rank, world), _store)
    group = Group(store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.world, timeout=PATIENCE)
    _joined = group
    try:
        with group.alive():
            yield group
            group.total([0])  # all leave together
        dist.destroy_process_group()
    finally:
        # After a failure the group is left as it is: who has gone would be waited for.
        _joined = None
