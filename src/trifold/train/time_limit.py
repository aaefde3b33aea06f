"""The steps of a run that fit into `train.minutes`, where a user has set none.

The learning rate is a function of the step, so a time limit may not change it later. A few updates
are timed before the first step, and the steps, the warmup and the intervals of the run are set and
recorded for the time that they take. A continued run keeps what is recorded (`sizing`).
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from trifold.batches import Blocks
from trifold.objectives.plans import NEW, plan_for
from trifold.recipe import Recipe, with_values
from trifold.train.data import RankShare, TrainingData, iterate_batches, take_share
from trifold.train.device import Machine
from trifold.train.initial_weights import new_model
from trifold.train.trainer import Trainer
from trifold.train.work_time import WorkTime, time_work

# Settings of `train` that are derived from the number of steps.
FITTED = ("steps", "warmup", "validate_every", "save_every")
UPDATES = 3  # that are timed, after the first one
MOST_TIMED = 0.05  # of the minutes, which timing may take
VALIDATIONS = 10  # at most
SHARE_OF_VALIDATIONS = 0.25  # of the minutes, at most
USED = 0.8  # of the minutes; the rest is for checkpoints, and for other programs
# Shares of the steps for the size of the data below which a model is weak. The second is that of
# ten epochs.
ENOUGH = 0.5
ENOUGH_PRETRAINED = 0.3
MIN_STEPS = 2  # a single one has the rate at the end of a decay, 0
MIN_INTERVAL = 20  # steps between validations, as in a run without a time limit


def with_steps(recipe: Recipe, steps: Mapping[str, int]) -> Recipe:
    """The recipe with other settings of `train`."""
    return with_values(recipe, {f"train.{key}": value for key, value in steps.items()})


def fit_steps(data: TrainingData, machine: Machine) -> dict[str, int]:
    """The settings with which a new run ends by itself within `train.minutes`; empty if it does, or
    if a user has set the number of steps.
    """
    recipe = data.recipe
    keys = _fitted_keys(recipe)
    if "steps" not in keys or recipe.train.minutes is None or machine.ranks.world > 1:
        return {}
    seconds = 60 * recipe.train.minutes
    updates = USED * seconds / time_update(data, machine, MOST_TIMED * seconds)
    cost = _updates_per_validation(data)
    validations = min(VALIDATIONS, max(1, int(SHARE_OF_VALIDATIONS * updates / cost)))
    steps = max(MIN_STEPS, int(updates - validations * cost))
    if steps >= recipe.train.steps:
        return {}
    every = max(-(-steps // validations), min(steps, MIN_INTERVAL))
    fitted = {"steps": steps, "warmup": steps // 10, "validate_every": every, "save_every": every}
    return {key: fitted[key] for key in FITTED if key in keys}


def describe_fit(recipe: Recipe, steps: Mapping[str, int]) -> str:
    """A line about the settings that fit into the minutes of the recipe."""
    settings = " ".join(f"train.{key}={value}" for key, value in steps.items())
    return (
        f"train.minutes={recipe.train.minutes:g} is enough for about {steps['steps']:,} of "
        f"{recipe.train.steps:,} steps: {settings}"
    )


def describe_shortage(recipe: Recipe, steps: int) -> str:
    """A warning if the steps that fit into the minutes are too few of those for the size of the
    data: about five epochs of new weights, and two or three of others. Empty if they are enough.
    """
    minutes = recipe.train.minutes
    enough = ENOUGH
    if recipe.start_from is not None and plan_for(recipe.task.kind, recipe.model) is NEW:
        enough = ENOUGH_PRETRAINED
    if minutes is None or steps >= enough * recipe.train.steps:
        return ""
    needed = -(-minutes * recipe.train.steps // steps)
    return (
        f"warning: {steps:,} of {recipe.train.steps:,} steps are too few for this data: expect a "
        f"model that has learned little; give it about train.minutes={needed:.0f}, or fewer rows "
        "and a smaller model"
    )


def time_update(data: TrainingData, machine: Machine, limit: float) -> float:
    """The seconds of an update of a model that is discarded, on a CPU that no other program uses;
    a line is reported if others use it. Several are timed if they take fewer seconds than the
    limit.
    """
    settings = data.recipe.train
    quiet = replace(data, report=lambda _line: None)
    trainer = Trainer(new_model(quiet), data.objective, settings, machine)
    batches = iterate_batches(data, machine.workers)
    shares = iter(lambda: take_share(batches, settings.accumulate), None)
    times = []
    with closing(trainer):
        for share in islice(shares, 1 + UPDATES):
            times.append(_time(trainer, share))
            if sum(update.clock for update in times[1:]) > limit:
                break
    # The first one compiles.
    fastest = min(times[1:] or times, key=lambda update: update.idle)
    if fastest.is_busy:
        data.report(
            f"the machine is busy: an update took {fastest.clock:.2g} seconds, {fastest.idle:.2g} "
            "of them for this run; steps are planned for the idle machine"
        )
    return fastest.idle


def _time(trainer: Trainer, share: RankShare) -> WorkTime:
    """The time of an update; on a GPU that of the clock, because the processor waits."""
    update = partial(trainer.update, share.micro_batches, 1, idle=share.idle)
    if trainer.machine.device.type == "cpu":
        return time_work(update, torch.get_num_threads())
    clock = time_work(update, 1).clock
    return WorkTime(clock, clock)


def _fitted_keys(recipe: Recipe) -> list[str]:
    """The fitted settings that are defaults for the size of the data in this recipe."""
    if recipe.train.minutes is None:
        return []
    return [key for key in FITTED if f"train.{key}" in recipe.sized]


def _updates_per_validation(data: TrainingData) -> float:
    """About how many updates take as long as a validation. The forward pass is a third of one; a
    decoder that writes its answers takes longer.
    """
    share = _size(data.valid) / max(1.0, _size(data.train))
    batches = share * len(data.plan(data.train, 0)) / data.recipe.train.accumulate
    if data.config.shape == "encoder-decoder":
        return batches
    return batches / 3


def _size(examples: Any) -> float:
    """The tokens of examples."""
    if isinstance(examples, Blocks):
        return float(examples.tokens)
    return float(examples.lengths.sum())
