"""Run the trials of a promise, each in its own folder and with its own random numbers."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.runs import Box, Broken, Reference


class Promise(NamedTuple):
    """A statement, its trial, and the numbers of trials: in `make test`, by default, and in full."""

    about: str
    trial: Callable[[Box], None]
    sample: int
    short: int
    full: int
    row: str  # of the reliability goals


class Verdict(NamedTuple):
    """The result of the trials; `failures` has a message for each failed one."""

    name: str
    about: str
    trials: int
    failures: list[str]
    seconds: float


Command = Callable[[Sequence[str]], int]
# Called before each trial with the promise, the number of the trial and the number of trials.
Trying = Callable[[str, int, int], None]


def try_promise(
    name: str,
    promise: Promise,
    trials: int,
    folder: Path,
    command: Command,
    *,
    seed: int = 1,
    first: int = 0,
    until_broken: bool = False,
    references: dict[str, Reference] | None = None,
    trying: Trying = lambda name, number, trials: None,
) -> Verdict:
    """Run the trials in `folder`, each in a folder that is removed after it; `command` is the
    command line `trifold`.

    first: the number of the first trial. until_broken: stop at the first failure. references: the
    runs of earlier promises in `folder`.
    """
    failures: list[str] = []
    references = {} if references is None else references
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, trials):
        trying(name, number, trials)
        place = folder / f"{name} {number}"
        place.mkdir(parents=True)
        box = Box(place, random.Random(f"{name} {seed} {number}"), number, references, command)
        try:
            promise.trial(box)
        except Broken as broken:
            failures.append(f"trial {number}: {broken}")
        except Exception as error:
            failures.append(f"trial {number}: {type(error).__name__}: {error}")
        shutil.rmtree(place, ignore_errors=True)
        if failures and until_broken:
            trials = number + 1
            break
    return Verdict(name, promise.about, trials - first, failures, time.perf_counter() - start)
