"""A program, as it copies itself: `ranked.py FOLDER` makes all the runs of several ranks that test_ranks.py looks at.

Prints the exit codes of each run, by its name, as JSON.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from tests.faults.groups import ranked
from tests.faults.runs import TINY, training

from trifold.errors import DataError
from trifold.objectives.translate import Translate
from trifold.recipe import load_recipe
from trifold.train import checkpoint, loop, setup, train
from trifold.train.dealing import deal
from trifold.train.learner import Learner
from trifold.train.ranks import joined
from trifold.train.saver import Saver
from trifold.train.sharding import on_first
from trifold.train.view import Silent

BASE = Path(sys.argv[1])
DRY = {"model.dropout": 0.0}
EXACT = DRY | {"train.precision": "float64", "train.save_every": 5, "train.validate_every": 10}
PARTS = {"train.sharding": "full"}
MORE = {"train.optimizer": "adamw", "train.ema": 0.9, "train.clip": 0.5, "train.weight_decay": 0.1}
FIFTY = {"train.steps": 50, "train.save_every": 25, "train.validate_every": 25}
codes: dict[str, list[int]] = {}
seconds: dict[str, float] = {}


def run(name: str, world: int, changes: dict[str, Any], folder: str | None = None, **how: Any) -> None:
    """A training on so many ranks; what it says is in NAME.txt, what it leaves in NAME or the folder that is named."""
    log, start = BASE / f"{name}.txt", time.monotonic()
    around: Callable[[int], Any] = how.pop("around", None)

    def work(rank: int) -> int:
        if around is not None:
            around(rank)
        return training(BASE / (folder or name), changes, log)()

    codes[name] = ranked(work, world, log=log, **how)
    seconds[name] = time.monotonic() - start


# --- the same result --------------------------------------------------------------------------------------


def curves() -> None:
    for world in (1, 2, 4):
        run(f"float64 on {world}", world, EXACT | FIFTY)
        run(f"float32 on {world}", world, DRY | FIFTY)
    run("float64 in 4 parts", 4, EXACT | PARTS)
    run("float32 in 2 parts", 2, DRY | PARTS)
    by_bytes = DRY | {
        "train.precision": "int8",
        "model.d_model": 256,
        "model.d_ff": 256,
        "batch.tokens": 2048,
        "train.learning_rate": 0.002,  # so wide a model at the rate of a narrow one would make much of little
    }
    run("int8 on 1", 1, by_bytes)
    run("int8 in 2 parts", 2, by_bytes | PARTS)
    going_round = EXACT | MORE | {"train.accumulate": 4, "batch.tokens": 128}
    run("accumulating on 1", 1, going_round)
    run("accumulating on 2", 2, going_round)
    run("accumulating in 2 parts", 2, going_round | PARTS)
    few = EXACT | {"batch.rows": 3, "train.steps": 6}  # fewer rows than ranks
    run("few rows on 1", 1, few)
    run("few rows on 4", 4, few)
    run("few rows in 4 parts", 4, few | PARTS)
    for world in (1, 4, 2):  # one run that goes on under other numbers of ranks
        steps = {"train.steps": {1: 4, 4: 8, 2: 12}[world]}
        run(f"sitting on {world}", world, EXACT | steps | (PARTS if world == 4 else {}), "sittings")
    run("sittings on 1", 1, EXACT)


def one_gradient(world: int, changes: dict[str, Any], file: Path) -> None:
    """Of the first update, as rank 0 sees it, whole."""

    def work(rank: int) -> int:
        recipe = load_recipe("smoke", TINY | DRY | changes)
        prepared = setup.prepare(recipe, BASE / "warm" / "tokenizer", Silent())
        with joined() as ranks:
            learner = Learner(
                prepared.new_model(),
                prepared.task,
                recipe.train,
                seed=1,
                device=torch.device("cpu"),
                dtype=torch.float32,
                ranks=ranks,
            )
            weights, taken = learner.weights, []
            take = weights.take_gradient

            def keep() -> torch.Tensor:
                taken.append(take().clone())
                return taken[0]

            (dealt,) = islice(deal(prepared, 1, rank=rank, world=world), 1)
            with mock.patch.object(weights, "take_gradient", keep):
                learner.update(dealt.shares, 1, math.inf, dealt.idle)
            named = {name: weights.across(name, part) for name, part in weights.named(taken[0]).items()}
            whole = on_first(named, ranks)
            if ranks.speaks:
                save_file({name: value.contiguous() for name, value in whole.items()}, file)
        return 0

    codes[file.stem] = ranked(work, world, log=BASE / "gradients.txt")


# --- states that travel -----------------------------------------------------------------------------------

FORMS = {"1": (1, {}), "2": (2, {}), "4": (4, {}), "2 parts": (2, PARTS), "4 parts": (4, PARTS)}


def travels() -> None:
    """Every form saves; every form loads what every form has saved, and saves it again."""
    for form, (world, changes) in FORMS.items():
        run(f"saved by {form}", world, DRY | MORE | changes | {"train.steps": 4})
    for form, (world, changes) in FORMS.items():
        codes[f"loaded by {form}"] = ranked(_again(form, changes), world, log=BASE / "travels.txt")


def _again(form: str, changes: dict[str, Any]) -> Callable[[int], int]:
    def work(rank: int) -> int:
        recipe = load_recipe("smoke", TINY | DRY | MORE | changes)
        prepared = setup.prepare(recipe, BASE / "warm" / "tokenizer", Silent())
        with joined() as ranks:
            learner = Learner(
                prepared.new_model(),
                prepared.task,
                recipe.train,
                seed=1,
                device=torch.device("cpu"),
                dtype=torch.float32,
                ranks=ranks,
            )
            for other in FORMS:
                state = checkpoint.load(BASE / f"saved by {other}" / "checkpoints" / "step-00000004")
                learner.restore(state.weights, state.moments)
                again = checkpoint.Checkpoint(*learner.state(), state.progress)
                Saver(BASE / f"{other} by {form}", recipe.train, ranks).save(again, 0)
        return 0

    return work


# --- bad days ---------------------------------------------------------------------------------------------


def struck(rank: int, number: int, step: int) -> Callable[[int], None]:
    """On one rank alone, a signal in the midst of that update."""

    def around(here: int) -> None:
        real = Learner._learn

        def learn(self: Learner, batch: Any, now: int, *more: Any) -> float:
            if here == rank and now == step:
                os.kill(os.getpid(), number)
            return real(self, batch, now, *more)

        mock.patch.object(Learner, "_learn", learn).start()

    return around


def poisoned(rank: int, step: int, value: float) -> Callable[[int], None]:
    """On one rank alone, that loss instead of its own, at that step."""

    def around(here: int) -> None:
        real = Learner._learn

        def learn(self: Learner, batch: Any, now: int, *more: Any) -> float:
            loss = real(self, batch, now, *more)
            return value if here == rank and now == step and not flag.exists() else loss

        flag = BASE / f"{rank} {step} {value}"
        mock.patch.object(Learner, "_learn", learn).start()

    return around


def long_validation(rank: int) -> None:
    """Rank 0 takes its time, until it is told to stop."""

    def evaluate(self: Any, model: Any, rows: Any, examples: Any, looking: Any) -> Any:
        (BASE / "a validation").touch()
        while True:
            looking.poll()
            time.sleep(0.01)

    mock.patch.object(Translate, "evaluate", evaluate).start()


def at_validation(rank: int, number: int) -> Callable[[list[int]], None]:
    def beside(children: list[int]) -> None:
        while not (BASE / "a validation").exists():
            time.sleep(0.01)
        os.kill(children[rank], number)

    return beside


def failing(rank: int) -> Callable[[int], None]:
    """One rank cannot read its data."""

    def around(here: int) -> None:
        def prepare(*_: Any) -> Any:
            raise DataError("corpus.txt: not on this machine")

        if here == rank:
            mock.patch.object(loop, "prepare", prepare).start()

    return around


def reading_another_file(rank: int) -> None:
    """Rank 1, on whose machine the file is another."""
    real = loop.prepare

    def prepare(*arguments: Any) -> Any:
        prepared = real(*arguments)
        prepared.train = prepared.task.examples(prepared.material.train.select(list(range(243)), "other"))
        return prepared

    if rank == 1:
        mock.patch.object(loop, "prepare", prepare).start()


def bad_days() -> None:
    run("undisturbed", 2, {})
    for rank, number, name in ((1, signal.SIGTERM, "SIGTERM"), (0, signal.SIGINT, "SIGINT")):
        run(f"stopped by {name}", 2, {}, around=struck(rank, number, 5))
        run(f"gone on after {name}", 2, {}, f"stopped by {name}")
    run("asked to save", 2, {}, around=struck(1, signal.SIGUSR1, 5))
    run("killed", 2, {}, around=struck(1, signal.SIGKILL, 8))
    run("gone on after a kill", 2, {}, "killed")
    run("killed in parts", 2, PARTS, around=struck(0, signal.SIGKILL, 3))
    run("validating", 2, {}, around=long_validation, beside=at_validation(1, signal.SIGTERM))
    run("gone on after validating", 2, {}, "validating")
    run("nonsense stops", 2, {}, around=poisoned(1, 5, math.nan))
    run("nonsense is skipped", 2, {"train.on_nonfinite": "skip"}, around=poisoned(1, 5, math.inf))
    spikes = {"train.on_spike": "rewind", "train.spike_window": 5, "train.spike_factor": 3.0}
    run("spikes", 2, spikes | PARTS | {"train.validate_every": 100}, around=poisoned(1, 8, 1e9))
    run("refused", 2, {"train.steps": 3}, "undisturbed", around=_no_resume)
    run("muon", 2, PARTS | {"train.optimizer": "muon"})
    run("alone without data", 2, {}, around=failing(1))
    run("other data", 2, {}, around=reading_another_file)


def _no_resume(rank: int) -> None:
    real = loop.train
    mock.patch("tests.faults.runs.train", lambda *a, **k: real(*a, **(k | {"resume": None}))).start()


if __name__ == "__main__":
    train("smoke", out=BASE / "warm", **TINY)
    begun = time.monotonic()
    curves()
    for world in (1, 2, 4):
        one_gradient(world, {}, BASE / f"gradient {world}.safetensors")
    one_gradient(4, PARTS, BASE / "gradient 4 parts.safetensors")
    travels()
    bad_days()
    print(json.dumps({"codes": codes, "seconds": seconds, "all": time.monotonic() - begun}))
