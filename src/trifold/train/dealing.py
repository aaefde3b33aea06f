"""The batches of a run, from any position on, the next one made while one is learnt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, TypeVar

from trifold.batches import deal as deal_batch
from trifold.objectives.objective import Batch
from trifold.train.setup import Prepared

T = TypeVar("T")

LOOK = 0.1  # seconds between two looks whether what is waited for is still wanted


class Dealt(NamedTuple):
    """What one rank has of a batch of the plan.

    epoch, number: of that batch. shares: what is learnt of it here, side by side. idle: where that is nothing, and the
    others learn a share each, a batch to keep step with them.
    """

    epoch: int
    number: int
    shares: list[Batch]
    idle: list[Batch]


def deal(
    prepared: Prepared,
    workers: int,
    epoch: int = 0,
    number: int = 0,
    *,
    accumulate: int = 1,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Dealt]:
    """Every batch from a position on, where an update begins, without end: what `rank` of `world` learns of it.

    The plan knows nothing of ranks: an update is made of the same rows however many there are. Where its `accumulate`
    batches go round, each rank learns whole ones; where they do not, every rank learns a share of each. What a rank has
    is cut once more, into a share for each worker.
    """
    turn = 0
    while True:
        examples, draw = prepared.examples(epoch), prepared.draw(epoch)
        lengths, plan = examples.lengths, prepared.plan(examples, epoch)
        for there in range(number, len(plan)):
            rows = plan[there]
            dealt = deal_batch(
                lengths, rows, turn, accumulate=accumulate, rank=rank, world=world, workers=workers
            )
            turn += 1
            made = [
                [prepared.task.batch(examples, part, prepared.width, draw=draw) for part in parts]
                for parts in dealt
            ]
            yield Dealt(epoch, there, *made)
        epoch, number = epoch + 1, 0


def everyones(
    prepared: Prepared, workers: int, dealt: list[Dealt], *, world: int, accumulate: int
) -> list[Batch]:
    """What all ranks together had to learn of the batches of an update; that of the others is made once more."""
    if world == 1:
        return [share for each in dealt for share in each.shares]
    found: list[Batch] = []
    for rank in range(world):
        place = dealt[0].epoch, dealt[0].number
        again = deal(prepared, workers, *place, accumulate=accumulate, rank=rank, world=world)
        found += [share for each in islice(again, len(dealt)) for share in each.shares]
    return found


def ahead(batches: Iterator[T], unwanted: Callable[[], bool] = lambda: False) -> Generator[T, None, None]:
    """The same batches; the next one is made while this one is learnt. They end where one is `unwanted` before it is
    made, which takes long where an epoch begins with tokenising: nobody waits for it, and no process does at its end.
    """
    wanted, made = SimpleQueue[bool](), SimpleQueue[tuple[list[T], BaseException | None]]()

    def make() -> None:
        while wanted.get():
            try:
                made.put(([next(batches)], None))
            except BaseException as error:  # raised again where somebody waits for it
                made.put(([], error))

    maker = Thread(target=make, name="batches", daemon=True)
    maker.start()
    wanted.put(True)
    try:
        while True:
            try:
                batch, error = made.get(timeout=LOOK)
            except Empty:
                if unwanted():
                    return
                continue
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            wanted.put(True)
            yield batch[0]
    finally:
        wanted.put(False)
        maker.join(LOOK)
