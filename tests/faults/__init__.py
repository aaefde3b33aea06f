"""Fault injection: promises about training, and trials that try to break them.

A promise is a property of a tiny but real run (`promises.py`). A trial breaks something at random
and checks the property. A plant (`plants.py`) is a bug that violates a promise: the harness must
find it. `python -m tests.faults` runs the trials."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from unittest import mock

from tests.faults.harness import Command, Trying, Verdict, try_promise
from tests.faults.plants import PLANTS
from tests.faults.promises import PROMISES
from tests.faults.runs import PLANTED, TINY, Reference

from trifold.train import train

__all__ = [
    "PLANTS",
    "PROMISES",
    "Size",
    "Trying",
    "Verdict",
    "plant_all",
    "planted",
    "try_all",
    "warm",
]

Size = Literal["sample", "short", "full"]


def try_all(
    names: Sequence[str],
    size: Size,
    folder: Path,
    command: Command,
    references: dict[str, Reference],
    *,
    trials: int | None = None,
    trying: Trying = lambda name, number, trials: None,
) -> Iterator[Verdict]:
    """Try promises in `folder`, one after the other; `command` is the command line `trifold` as a
    function. references: earlier runs, to which those of these promises are added.
    """
    for name in names:
        promise = PROMISES[name]
        numbers = promise.sample if size == "sample" else range(getattr(promise, size))
        if trials is not None:
            numbers = range(trials)
        yield try_promise(
            name, promise, numbers, folder, command, references=references, trying=trying
        )


def plant_all(
    names: Sequence[str], folder: Path, command: Command, references: dict[str, Reference]
) -> Iterator[Verdict]:
    """Plant one bug after the other and try the promise that it breaks until a trial fails; a
    verdict without failures means that the bug was not found. references: as for `try_all`."""
    for name in names:
        plant = PLANTS[name]
        promise = PROMISES[plant.breaks]
        with planted(name):
            verdict = try_promise(
                plant.breaks,
                promise,
                range(plant.first, promise.short),
                folder / name,
                command,
                until_broken=True,
                references={} if plant.alters_all_runs else references,
            )
        yield verdict._replace(name=name, about=f"{plant.about} (breaks {plant.breaks})")


@contextmanager
def planted(plant: str | None) -> Iterator[None]:
    """Context manager: the named bug, if any, is planted."""
    if plant is None:
        yield
        return
    with mock.patch.dict(os.environ, {PLANTED: plant}), PLANTS[plant].put_in():
        yield


def warm(folder: Path) -> None:
    """Load and compile what a run needs before the process is forked."""
    importlib.import_module("torch._dynamo")  # by the first of torch's own optimizers
    train("smoke", out=folder / "warm", **TINY)
    gc.collect()
    gc.freeze()  # else collections in a fork write to, and so copy, the memory of this process
