"""The ranks that `torchrun` starts, and how they agree.

All ranks take the same steps; only rank 0 writes files and prints. Tensors are summed through the
process group (gloo on CPU, NCCL on GPU), where all ranks meet. Decisions of rank 0 that may take
long (a validation, a write to disk) go through the key-value store: the other ranks wait for the
result without a time limit and forward the signals that they receive.
"""

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from trifold.errors import OtherRankError, UsageError
from trifold.train.ranks import Interrupted, Ranks

P = ParamSpec("P")
T = TypeVar("T")

# How long ranks wait for each other in a collective. A lost rank is noticed at once, by its closed
# connection.
TIMEOUT = timedelta(minutes=30)
# Seconds between two polls of the store: the first and the longest interval.
POLL_INTERVALS = (0.002, 0.1)
HEARTBEAT_INTERVAL = 0.25  # seconds
# Polls without a heartbeat after which rank 0 counts as lost; native code may block it for long.
# The limit is lower after a signal, which torchrun sends if a rank is lost. Polls are counted, not
# seconds, because a suspended process does not poll.
MAX_POLLS = 6000
MAX_POLLS_AFTER_SIGNAL = 30
# How long a failing rank 0 keeps the store alive for ranks that have not read its error.
FINAL_POLLS = 50
FAILED = -1  # in place of the number of a signal: a rank has raised another error


class ProcessGroup(Ranks):
    """The ranks that `torchrun` started, as described by its environment variables."""

    def __init__(self, store: Any, environment: Mapping[str, str] = os.environ) -> None:
        self.rank = int(environment["RANK"])
        self.world = int(environment["WORLD_SIZE"])
        self.local_rank = int(environment.get("LOCAL_RANK", self.rank))
        self.local_world = int(environment.get("LOCAL_WORLD_SIZE", self.world))
        self.store = store
        self._calls = 0
        self._forwarded = False
        self._last_poll = 0.0
        self._received: Callable[[], int | None] = lambda: None

    @property
    def command(self) -> str:
        machines = ""
        if self.local_world != self.world:
            machines = f"--nnodes {self.world // self.local_world} … "
        return f"torchrun {machines}--nproc-per-node {self.local_world} -m trifold"

    def sum(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
        self.all_reduce(sums)
        return sums.tolist()

    def all_reduce(self, vector: Tensor) -> None:
        with explain_lost_rank():
            dist.all_reduce(vector)

    def broadcast(self, vector: Tensor) -> None:
        with explain_lost_rank():
            dist.broadcast(vector, 0)

    def first(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._calls += 1
        key = f"result {self._calls}"
        if not self.is_first:
            received: T = self._wait_for(key)
            return received
        try:
            result = work(*args, **kwargs)
        except Interrupted as interrupted:
            self._publish_last(key, {"interrupted": interrupted.signal})
            raise
        except BaseException as error:
            message = getattr(error, "message", str(error))
            code = getattr(error, "exit_code", 1)
            self._publish_last(key, {"failed": message, "exit_code": code})
            raise
        self._publish(key, {"result": result})
        return result

    def _publish(self, key: str, message: Mapping[str, Any]) -> None:
        with explain_lost_rank():
            self.store.set(key, json.dumps(message))

    def _publish_last(self, key: str, message: Mapping[str, Any]) -> None:
        """Publish an error and wait until all ranks have read it, since the store may live in this
        process.
        """
        with suppress(OtherRankError):
            self._publish(key, message)
            for _ in range(FINAL_POLLS):
                if self.store.add("errors read", 0) >= self.world - 1:
                    return
                time.sleep(POLL_INTERVALS[1])

    def _wait_for(self, key: str) -> Any:
        interval, longest = POLL_INTERVALS
        polls = 0
        last_beat = b""
        with explain_lost_rank():
            while not self.store.check([key]):
                signal = self._received()
                if signal is not None and not self._forwarded:
                    self.store.set("signal", str(signal))
                    self._forwarded = True
                time.sleep(interval)
                interval = min(1.5 * interval, longest)
                beat = self._value_of("heartbeat")
                if beat == last_beat:
                    polls += 1
                else:
                    last_beat = beat
                    polls = 0
                if polls > (MAX_POLLS if signal is None else MAX_POLLS_AFTER_SIGNAL):
                    raise OtherRankError("rank 0 is lost")
            message = json.loads(self.store.get(key))
            if "result" not in message:
                self.store.add("errors read", 1)
        if "interrupted" in message:
            raise Interrupted(message["interrupted"])
        if "failed" in message:
            raise OtherRankError(f"rank 0: {message['failed']}", message["exit_code"])
        return message["result"]

    def _value_of(self, key: str) -> bytes:
        """A value of the store; empty if it does not exist yet. `get` would wait for it."""
        if not self.store.check([key]):
            return b""
        value: bytes = self.store.get(key)
        return value

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Rank 0 updates a counter in the store until the block ends."""
        ended = threading.Event()

        def beat() -> None:
            number = 0
            with suppress(RuntimeError):
                while not ended.wait(HEARTBEAT_INTERVAL):
                    number += 1
                    self.store.set("heartbeat", str(number))

        if self.is_first:
            threading.Thread(target=beat, name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def in_turn(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        results: list[T] = []
        failure: Exception | None = None
        self.first(lambda: results.append(work(*args, **kwargs)))
        if not self.is_first:
            try:
                results.append(work(*args, **kwargs))
            except Exception as error:
                failure = error
        signals = self.gather(_signal_of(failure))
        if FAILED in signals:
            culprit = signals.index(FAILED)
            if failure is not None and culprit == self.rank:
                raise failure
            raise OtherRankError(f"rank {culprit} failed")
        if any(signals):
            raise Interrupted(int(max(signals)))
        return results[0]

    def forward_signals(self, received: Callable[[], int | None]) -> None:
        self._received = received

    def forwarded_signal(self) -> int | None:
        now = time.monotonic()
        if now < self._last_poll + POLL_INTERVALS[1]:
            return None
        self._last_poll = now
        with explain_lost_rank():
            signal = self._value_of("signal")
        if not signal:
            return None
        return int(signal)


def _signal_of(failure: Exception | None) -> int:
    """The number of the signal that interrupted a rank, FAILED after another error, otherwise 0."""
    if failure is None:
        return 0
    if isinstance(failure, Interrupted) and failure.signal:
        return failure.signal
    return FAILED


@contextmanager
def explain_lost_rank() -> Iterator[None]:
    """Raise OtherRankError for errors of the store, gloo and NCCL: another rank has ended."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise OtherRankError(
            "another rank ended unexpectedly; see its error message or that of torchrun, then "
            "continue with "
            "--resume auto",
            reported=False,
        ) from error


def _meet(store: Any, rank: int, world: int) -> str:
    """Wait for all ranks of this start, and return a name that no earlier start has used.

    The store may outlive the ranks: after a restart by torchrun it still contains the keys of
    killed processes. Each rank therefore writes a random number, rank 0 announces the numbers that
    it sees, and the run begins when every rank has confirmed its own.
    """
    number = secrets.token_hex(8)
    store.set(f"present {rank}", number)
    end = time.monotonic() + TIMEOUT.total_seconds()
    with explain_lost_rank():
        while time.monotonic() < end:
            present = [f"present {other}" for other in range(world)]
            if rank == 0 and store.check(present):
                store.set("announced", " ".join(store.get(key).decode() for key in present))
            announced = ""
            if store.check(["announced"]):
                announced = store.get("announced").decode()
            name = hashlib.sha256(announced.encode()).hexdigest()
            if announced.split(" ")[rank : rank + 1] == [number]:
                store.set(f"{name} confirmed by {rank}", "")
                if rank == 0 and store.check(
                    [f"{name} confirmed by {other}" for other in range(world)]
                ):
                    store.set(f"{name} begins", "")
                if store.check([f"{name} begins"]):
                    return name
            time.sleep(POLL_INTERVALS[0])
    raise OtherRankError(f"rank {rank}: not all of {world} ranks joined within {TIMEOUT}")


_current: Ranks | None = None  # the ranks of the run in progress; joining again returns them
_joins = 0
_store: Any = None


@contextmanager
def join_group() -> Iterator[Ranks]:
    """The ranks that `torchrun` started. Raises UsageError if torch.distributed is already in
    use.
    """
    global _current, _joins, _store
    if _current is not None:
        yield _current
        return
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is already initialized; trifold joins the ranks of torchrun "
            "itself, so do not call "
            "init_process_group"
        )
    if _store is None:
        _store, _, _ = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    _joins += 1
    rank = int(os.environ["RANK"])
    world = int(os.environ["WORLD_SIZE"])
    group = ProcessGroup(
        PrefixStore(_meet(PrefixStore(f"trifold {_joins}", _store), rank, world), _store)
    )
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=group.store, rank=rank, world_size=world, timeout=TIMEOUT
    )
    _current = group
    try:
        with group.heartbeat(), explain_lost_rank():
            yield group
            group.sum([0])  # all ranks leave together
        dist.destroy_process_group()
    finally:
        # After a failure the group is not destroyed, because that would wait for the lost ranks.
        _current = None
