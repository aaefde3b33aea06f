"""`ranked.py FOLDER` makes all runs with several ranks that test_distributed.py checks, as forks of one
process.

Prints the exit codes and the duration of each run, by name, as JSON.
"""

from __future__ import annotations

import gc
import importlib
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
from tests.train.runs import SAVED_OFTEN

from trifold.baselines import comparison
from trifold.errors import DataError
from trifold.objectives.translate import Translate
from trifold.recipe import load_recipe
from trifold.train import checkpoint, data, loop, model_card, preparation, train
from trifold.train.checkpoint import Saver
from trifold.train.device import find_machine
from trifold.train.initial_weights import new_model
from trifold.train.launch import join_ranks
from trifold.train.monitor import View
from trifold.train.ranks import Ranks
from trifold.train.sharding import gather_on_first
from trifold.train.trainer import Trainer

BASE = Path(sys.argv[1])
NO_DROPOUT = {"model.dropout": 0.0}
EXACT = NO_DROPOUT | {
    "train.precision": "float64",
    "train.save_every": 5,
    "train.validate_every": 10,
}
SHORT = {"train.steps": 6, "train.save_every": 6}
SHARDED = {"train.sharding": "full"}
MORE = {"train.optimizer": "adamw", "train.ema": 0.9, "train.clip": 0.5, "train.weight_decay": 0.1}
codes: dict[str, list[int]] = {}
seconds: dict[str, float] = {}


def run(
    name: str, world: int, changes: dict[str, Any], folder: str | None = None, **options: Any
) -> None:
    """A training with `world` ranks. Its output is NAME.txt; its folder is NAME, or `folder`.

    patch: called in each rank, with its number, before it trains.
    """
    log, start = BASE / f"{name}.txt", time.monotonic()
    patch: Callable[[int], Any] = options.pop("patch", lambda rank: None)

    def work(rank: int) -> int:
        patch(rank)
        return training(BASE / (folder or name), changes, log)()

    codes[name] = ranked(work, world, log=log, **options)
    seconds[name] = time.monotonic() - start


# --- equal results --------------------------------------------------------------------------------


def make_curves() -> None:
    """Three ranks have parts of unequal size, and work that two ranks do not wait for."""
    for world in (1, 2, 3):
        run(f"float64 on {world}", world, EXACT)
    run("float64 sharded on 3", 3, EXACT | SHARDED)
    float32 = NO_DROPOUT | SHORT
    run("float32 on 1", 1, float32)
    run("float32 on 2", 2, float32)
    run("float32 sharded on 2", 2, float32 | SHARDED)
    int8 = float32 | {
        "train.precision": "int8",
        "model.d_model": 256,
        "model.d_ff": 256,
        "batch.tokens": 2048,
        "train.learning_rate": 0.002,  # a wide model needs a lower rate than the tiny one
    }
    run("int8 on 1", 1, int8)
    run("int8 sharded on 2", 2, int8 | SHARDED)
    accumulating = EXACT | MORE | SHORT | {"train.accumulate": 4, "batch.tokens": 128}
    run("accumulating on 1", 1, accumulating)
    run("accumulating on 2", 2, accumulating)
    run("accumulating sharded on 2", 2, accumulating | SHARDED)
    few = EXACT | SHORT | {"batch.rows": 2}  # fewer rows than ranks
    run("few rows on 1", 1, few)
    run("few rows on 3", 3, few)
    run("few rows sharded on 3", 3, few | SHARDED)
    frozen = EXACT | SHORT | {"train.freeze": ["*embeddings", "encoder"], "train.layer_decay": 0.5}
    run("frozen on 1", 1, frozen)
    run("frozen sharded on 2", 2, frozen | SHARDED)
    parts = {
        "shape": "decoder",
        "norm_placement": "pre",
        "experts": {"count": 4, "per_token": 2},
        "n_layers": 2,
    }
    experts = EXACT | SHORT | {f"model.{key}": value for key, value in parts.items()}
    experts |= {
        "task.kind": "causal",
        "data.field": "target",
        "task.balance_loss": 0.5,
        "task.router_z_loss": 0.1,
    }
    run("experts on 1", 1, experts)
    run("experts on 2", 2, experts)
    run("experts sharded on 2", 2, experts | SHARDED | {"train.recompute": "blocks"})
    for world, steps in ((1, 4), (3, 8), (2, 12)):  # one run, continued with other numbers of ranks
        changes = EXACT | {"train.steps": steps} | (SHARDED if world == 3 else {})
        run(f"session on {world}", world, changes, "sessions")


def new_trainer(changes: dict[str, Any], ranks: Ranks) -> tuple[data.TrainingData, Trainer]:
    recipe = load_recipe("smoke", TINY | NO_DROPOUT | changes)
    training_data = data.load_data(recipe, BASE / "warm" / "tokenizer", View())
    trainer = Trainer(
        new_model(training_data),
        training_data.objective,
        recipe.train,
        find_machine(recipe.train, recipe.batch.tokens, ranks),
    )
    return training_data, trainer


def save_gradient(world: int, changes: dict[str, Any], file: Path) -> None:
    """The full gradient of the first update."""

    def work(rank: int) -> int:
        with join_ranks() as ranks:
            training_data, trainer = new_trainer(changes, ranks)
            weights, gradients = trainer.weights, []
            take_gradient = weights.take_gradient

            def recorded() -> torch.Tensor:
                gradients.append(take_gradient().clone())
                return gradients[0]

            (batch,) = islice(data.iterate_batches(training_data, 1, rank=rank, world=world), 1)
            with mock.patch.object(weights, "take_gradient", recorded):
                trainer.update(batch.micro_batches, 1, math.inf, batch.idle)
            named = {
                name: weights.to_global(name, part)
                for name, part in weights.named(gradients[0]).items()
            }
            full = gather_on_first(named, ranks)
            if ranks.is_first:
                save_file({name: value.contiguous() for name, value in full.items()}, file)
        return 0

    codes[file.stem] = ranked(work, world, log=BASE / "gradients.txt")


# --- checkpoints ----------------------------------------------------------------------------------

FORMS = {"1": (1, {}), "2": (2, {}), "sharded 3": (3, SHARDED)}


SAVED_ONCE = {"train.steps": 4, "train.save_every": 4}


def exchange_checkpoints() -> None:
    """Each form saves; each form loads what every form has saved, and saves it again."""
    for form, (world, changes) in FORMS.items():
        run(f"saved by {form}", world, NO_DROPOUT | MORE | changes | SAVED_ONCE)
    for form, (world, changes) in FORMS.items():
        codes[f"loaded by {form}"] = ranked(
            save_again(form, changes), world, log=BASE / "exchange.txt"
        )


def save_again(form: str, changes: dict[str, Any]) -> Callable[[int], int]:
    def work(rank: int) -> int:
        with join_ranks() as ranks:
            training_data, trainer = new_trainer(MORE | changes, ranks)
            for other in FORMS:
                state = checkpoint.load(
                    BASE / f"saved by {other}" / "checkpoints" / "step-00000004"
                )
                trainer.restore(state.weights, state.optimizer)
                again = checkpoint.Checkpoint(*trainer.state(), state.progress)
                Saver(BASE / f"{other} by {form}", training_data.recipe.train, ranks).save(again, 0)
        return 0

    return work


# --- faults ---------------------------------------------------------------------------------------


def signal_at(rank: int, number: int, step: int) -> Callable[[int], None]:
    """One rank receives a signal during an update."""

    def patch(here: int) -> None:
        real = Trainer._backward

        def backward(self: Trainer, batch: Any, now: int, *more: Any) -> float:
            if here == rank and now == step:
                os.kill(os.getpid(), number)
            return real(self, batch, now, *more)

        mock.patch.object(Trainer, "_backward", backward).start()

    return patch


def loss_at(rank: int, step: int, value: float) -> Callable[[int], None]:
    """One rank computes this loss, once."""

    def patch(here: int) -> None:
        real, flag = Trainer._backward, BASE / f"{rank} {step} {value}"

        def backward(self: Trainer, batch: Any, now: int, *more: Any) -> float:
            loss = real(self, batch, now, *more)
            return value if here == rank and now == step and not flag.exists() else loss

        mock.patch.object(Trainer, "_backward", backward).start()

    return patch


def endless_validation(rank: int) -> None:
    """The validation lasts until a signal interrupts it."""

    def evaluate(self: Any, model: Any, rows: Any, examples: Any, context: Any) -> Any:
        (BASE / "validation").touch()
        while True:
            context.poll()
            time.sleep(0.01)

    mock.patch.object(Translate, "evaluate", evaluate).start()


def signal_validation(children: list[int]) -> None:
    while not (BASE / "validation").exists():
        time.sleep(0.01)
    os.kill(children[1], signal.SIGTERM)


def missing_data(rank: int) -> None:
    """Rank 1 cannot read its data."""

    def load_data(*_: Any) -> Any:
        raise DataError("corpus.txt: not on this machine")

    if rank == 1:
        mock.patch.object(preparation, "load_data", load_data).start()


def other_data(rank: int) -> None:
    """Rank 1 reads other data."""
    real = preparation.load_data

    def load_data(*arguments: Any) -> Any:
        loaded = real(*arguments)
        loaded.train = loaded.objective.examples(
            loaded.bundle.train.select(list(range(243)), "other")
        )
        return loaded

    if rank == 1:
        mock.patch.object(preparation, "load_data", load_data).start()


def without_resume(rank: int) -> None:
    real = loop.train
    mock.patch(
        "tests.faults.runs.train", lambda *a, **k: real(*a, **(k | {"resume": None}))
    ).start()


def make_faults() -> None:
    run("undisturbed", 2, {})
    for rank, number, name in ((1, signal.SIGTERM, "SIGTERM"), (0, signal.SIGINT, "SIGINT")):
        run(f"stopped by {name}", 2, {}, patch=signal_at(rank, number, 5))
        run(f"continued after {name}", 2, {}, f"stopped by {name}")
    run("save request", 2, {}, patch=signal_at(1, signal.SIGUSR1, 5))
    run("killed", 2, {}, patch=signal_at(1, signal.SIGKILL, 8))
    run("continued after a kill", 2, {}, "killed")
    run("killed, sharded", 2, SHARDED, patch=signal_at(0, signal.SIGKILL, 3))
    run("validating", 2, {}, patch=endless_validation, meanwhile=signal_validation)
    run("continued after validating", 2, {}, "validating")
    run("non-finite stops", 2, {}, patch=loss_at(1, 5, math.nan))
    run("non-finite is skipped", 2, {"train.on_nonfinite": "skip"}, patch=loss_at(1, 5, math.inf))
    spikes = {"train.on_spike": "rewind", "train.spike_window": 5, "train.spike_factor": 3.0}
    run("spike", 2, spikes | SHARDED | {"train.validate_every": 100}, patch=loss_at(1, 8, 1e9))
    run("not resumed", 2, {"train.steps": 3}, "undisturbed", patch=without_resume)
    run("muon", 2, SHARDED | {"train.optimizer": "muon"})
    run("missing data", 2, {}, patch=missing_data)
    run("other data", 2, {}, patch=other_data)


def all_resamples(rank: int) -> None:
    """Compute the intervals of a card as a process of torchrun does."""
    for module in (comparison, model_card):
        mock.patch.object(module, "RESAMPLES", 1_000).start()


def load_modules() -> None:
    """Load what the ranks would load each for itself, which takes seconds."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else collections in a rank write to, and so copy, the memory of this process


if __name__ == "__main__":
    load_modules()
    train("smoke", out=BASE / "warm", **TINY)
    make_curves()
    for world in (1, 2, 3):
        save_gradient(world, {}, BASE / f"gradient {world}.safetensors")
    save_gradient(3, SHARDED, BASE / "gradient sharded 3.safetensors")
    exchange_checkpoints()
    make_faults()
    run("uninterrupted", 2, SAVED_OFTEN, patch=all_resamples)
    print(json.dumps({"codes": codes, "seconds": seconds}))
