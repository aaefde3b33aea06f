"""The batches of a run, from any position on, the next one made while one is learnt."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

from trifold.batches import shares
from trifold.tasks.task import Batch
from trifold.train.setup import Prepared

Dealt: TypeAlias = tuple[int, int, list[Batch]]  # epoch, number in the epoch, the batch in shares
T = TypeVar("T")


def deal(prepared: Prepared, workers: int, epoch: int = 0, number: int = 0) -> Iterator[Dealt]:
    """Every batch from a position on, without end, each cut into a share for every worker."""
    while True:
        examples, draw = prepared.examples(epoch), prepared.draw(epoch)
        lengths, plan = examples.lengths, prepared.plan(examples, epoch)
        for there in range(number, len(plan)):
            parts = shares(lengths, plan[there], workers)
            yield (
                epoch,
                there,
                [prepared.task.batch(examples, part, prepared.width, draw=draw) for part in parts],
            )
        epoch, number = epoch + 1, 0


def ahead(batches: Iterator[T]) -> Generator[T, None, None]:
    """The same batches, without end; the next one is made while this one is learnt."""
    with ThreadPoolExecutor(1, "batches") as maker:
        coming = maker.submit(next, batches)
        while True:
            here = coming.result()
            coming = maker.submit(next, batches)
            yield here
