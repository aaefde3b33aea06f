"""Run the trials of a promise, each in its own folder and with its own random numbers."""

from __future__ import annotations

import random
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.runs import Box, Broken, Reference


class Promise(NamedTuple):
    """A statement, its trial, which trials `make test` runs, and how many run by default and in full.

    Trials have numbers from 0; the number chooses a configuration and the random numbers.
    """

    about: str
    trial: Callable[[Box], None]
    sample: Sequence[int]
    short: int
    full: int
    row: str  # of the reliability goals


class Verdict(NamedTuple):
    """The result of the trials. failures: a message for each trial that saw the promise broken.
    errors: one for each that ended in another error, which says nothing about the promise. slowest:
    the longest trial in seconds.
    """

    name: str
    about: str
    trials: int
    failures: list[str]
    errors: list[str]
    seconds: float
    slowest: float

    @property
    def is_kept(self) -> bool:
        return not self.failures and not self.errors

    @property
    def is_found(self) -> bool:
        """Whether a planted bug was seen as what it is."""
        return bool(self.failures) and not self.errors


Command = Callable[[Sequence[str]], int]
# Called before each trial with the promise, the number of the trial and the number of trials.
Trying = Callable[[str, int, int], None]


def try_promise(
    name: str,
    promise: Promise,
    numbers: Sequence[int],
    folder: Path,
    command: Command,
    *,
    seed: int = 1,
    until_broken: bool = False,
    references: dict[str, Reference] | None = None,
    trying: Trying = lambda name, number, trials: None,
) -> Verdict:
    """Run the trials in `folder`, each in a folder that is removed after it; `command` is the
    command line `trifold`.

    numbers: of the trials. until_broken: stop at the first failure. references: the runs of earlier
    promises in `folder`.
    """
    failures: list[str] = []
    errors: list[str] = []
    slowest = 0.0
    references = {} if references is None else references
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    trials = 0
    for number in numbers:
        trying(name, trials, len(numbers))
        trials += 1
        place = folder / f"{name} {number}"
        place.mkdir(parents=True)
        box = Box(place, random.Random(f"{name} {seed} {number}"), number, references, command)
        before = time.perf_counter()
        try:
            promise.trial(box)
        except Broken as broken:
            failures.append(f"trial {number}: {broken}")
        except Exception as error:
            errors.append(f"trial {number}: {type(error).__name__}: {error}{_place(error)}")
        slowest = max(slowest, time.perf_counter() - before)
        shutil.rmtree(place, ignore_errors=True)
        if (failures or errors) and until_broken:
            break
    seconds = time.perf_counter() - start
    return Verdict(name, promise.about, trials, failures, errors, seconds, slowest)


def _place(error: Exception) -> str:
    """File and line that raised an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"
