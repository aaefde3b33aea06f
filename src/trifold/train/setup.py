"""From a recipe to everything the loop needs: a task, its examples, a model."""

from __future__ import annotations

import platform
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trifold.batches import BatchSettings, overlong, padding_share, plan_epoch
from trifold.batches.plan import Plan
from trifold.errors import DataError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.objective import BuildContext, Examples, Objective, PlannedExamples, TaskBundle
from trifold.recipe import Recipe
from trifold.train.start import begin_from
from trifold.train.view import View


@dataclass
class Prepared:
    """What is the same in every step of a run."""

    recipe: Recipe
    material: TaskBundle
    train: Examples
    valid: Examples

    @property
    def task(self) -> Objective:
        return self.material.objective

    @property
    def config(self) -> ModelConfig:
        return self.material.config

    @property
    def valid_rows(self) -> Any:
        return self.material.valid

    def draw(self, epoch: int) -> int:
        """64 bits from which everything random in the data of an epoch is drawn."""
        drawn = np.random.SeedSequence([self.recipe.train.seed, epoch]).generate_state(1, np.uint64)
        return int(drawn[0])

    def examples(self, epoch: int) -> Examples:
        """The training rows as tokens; read anew in epochs where the task says so, else always the same."""
        if not self.material.redraws(epoch):
            return self.train
        return self.task.examples(self.material.train, draw=self.draw(epoch))

    def plan(self, examples: Examples, epoch: int) -> Plan:
        """The batches of an epoch: a function of seed and epoch, so that resuming is seeking."""
        if isinstance(examples, PlannedExamples):
            return examples.plan(self.batches, seed=self.recipe.train.seed, epoch=epoch)
        return plan_epoch(examples.lengths, self.batches, seed=self.recipe.train.seed, epoch=epoch)

    @property
    def batches(self) -> BatchSettings:
        """The recipe's batches; no row is longer than the model's positions."""
        asked = self.recipe.batch
        limit = min(asked.max_length or self.config.max_positions, self.config.max_positions)
        return asked.model_copy(update={"max_length": limit})

    @property
    def width(self) -> int | None:
        """Where longer rows are cut, if the recipe wants them cut."""
        return self.batches.max_length if self.recipe.batch.on_overflow == "truncate" else None

    @property
    def fingerprint(self) -> str:
        """By which ranks tell that they have read the same: how many rows there are, and how long each is."""
        if isinstance(self.train, PlannedExamples):
            return f"{len(self.train.lengths):,} rows of {self.train.tokens:,} tokens"
        return f"{len(self.train.lengths):,} rows, checksum {zlib.crc32(self.train.lengths.tobytes()):08x}"

    def check_alike(self, fingerprint: str) -> None:
        """Raises DataError where rank 0 has read something else."""
        if self.fingerprint != fingerprint:
            raise DataError(
                f"{self.recipe.data.train}: {platform.node()} reads {self.fingerprint}, and rank 0 {fingerprint}; give "
                "all machines the same files and the same version of trifold"
            )

    def new_model(self) -> Transformer:
        """Fresh weights, a function of the seed; or those of the model that the recipe starts from."""
        torch.manual_seed(self.recipe.train.seed)
        model = Transformer(self.config)
        if self.recipe.train.start_from is not None:
            begin_from(self.recipe.train.start_from, model)
        if self.material.initialize is not None:
            self.material.initialize(model)
        return model


def prepare(recipe: Recipe, tokenizer_folder: Path, view: View) -> Prepared:
    """Read the data, train or load the tokenizers, encode. What is dropped is counted and said.

    Raises SettingsError or DataError before anything is learnt.
    """
    asked = BuildContext(
        recipe.data,
        recipe.tokenizer,
        recipe.model,
        recipe.batch,
        recipe.train.seed,
        tokenizer_folder,
        view.say,
    )
    recipe.task.check_unused_keys(asked)
    if recipe.train.warmup >= recipe.train.steps:
        view.say(
            f"train.warmup: {recipe.train.warmup:,} steps of {recipe.train.steps:,}: the rate rises to the end"
        )
    material = recipe.task.build(asked)
    task = material.objective
    prepared = Prepared(recipe, material, task.examples(material.train), task.examples(material.valid))
    _report(prepared, view)
    return prepared


def _report(prepared: Prepared, view: View) -> None:
    """What an epoch holds, and what was too long for it."""
    lengths, settings, task = prepared.train.lengths, prepared.batches, prepared.task
    plan = prepared.plan(prepared.train, 0)
    if isinstance(prepared.train, PlannedExamples):
        view.say(
            f"an epoch: {len(lengths):,} rows, {prepared.train.tokens:,} {task.token_name}, {len(plan):,} batches, "
            f"no padding; vocabulary {prepared.material.vocabulary}"
        )
        return
    if dropped := int(overlong(lengths, settings).sum()):
        fate = {"drop": "left out", "truncate": "cut"}[settings.on_overflow]
        view.say(
            f"{dropped:,} of {len(lengths):,} {task.row_name} are longer than {settings.max_length} tokens: {fate}"
        )
    kept = np.concatenate(plan)
    tokens = int(lengths[kept, -1].sum())
    form = "packed" if task.packs else f"{padding_share(lengths, plan):.1%} padding"
    view.say(
        f"an epoch: {len(kept):,} {task.row_name}, {tokens:,} {task.read_name}, {len(plan):,} batches, {form}; "
        f"vocabulary {prepared.material.vocabulary}"
    )
