"""From a recipe to everything the loop needs: tokenizers, examples, task, model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trifold.batches import BatchSettings, overlong, padding_share, plan_epoch
from trifold.batches.plan import Plan
from trifold.data import Pairs, read_splits
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.recipe import Recipe
from trifold.tasks.translate import Examples, Translate
from trifold.text import Tokenizer, make_tokenizer
from trifold.train.view import View


@dataclass
class Prepared:
    """What is the same in every step of a run."""

    recipe: Recipe
    config: ModelConfig
    task: Translate
    train_pairs: Pairs
    train: Examples
    valid_pairs: Pairs
    valid: Examples

    def examples(self, epoch: int) -> Examples:
        """The training rows as tokens; drawn anew each epoch where merges drop out, else always the same."""
        settings = self.recipe.tokenizer
        if not settings.dropout or epoch >= (settings.dropout_epochs or epoch + 1):
            return self.train
        draw = int(np.random.SeedSequence([self.recipe.train.seed, epoch]).generate_state(1)[0])
        return self.task.examples(self.train_pairs, draw=draw)

    def plan(self, examples: Examples, epoch: int) -> Plan:
        """The batches of an epoch: a function of seed and epoch, so that resuming is seeking."""
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

    def new_model(self) -> Transformer:
        """Fresh weights, a function of the seed."""
        torch.manual_seed(self.recipe.train.seed)
        return Transformer(self.config)


def prepare(recipe: Recipe, tokenizer_folder: Path, view: View) -> Prepared:
    """Read the data, train or load the tokenizers, encode. What is dropped is counted and said.

    Raises SettingsError or DataError before anything is learnt.
    """
    if recipe.data.train is None:
        raise SettingsError(
            "data.train: no training data; set data.train=FILE.source,FILE.target or one table"
        )
    if recipe.data.valid is None and not recipe.data.holdout:
        raise SettingsError(
            "data.valid: no validation data; set data.valid=…, or data.holdout=500 to hold pairs out"
        )
    splits = read_splits(recipe.data, recipe.train.seed)
    assert splits.train is not None and splits.valid is not None
    for pairs in (splits.train, splits.valid):
        view.say(str(pairs.report))
    source, target = _tokenizers(recipe, splits.train, tokenizer_folder, view)
    config = recipe.model.model_copy(
        update={
            "vocab_size": source.vocab_size,
            "target_vocab_size": None if recipe.tokenizer.joint else target.vocab_size,
            "pad_id": source.pad_id,
            "bos_id": source.bos_id,
            "eos_id": source.eos_id,
        }
    )
    task = Translate(recipe.task, source, target, start_id=config.start_id)
    valid = _short_enough(splits.valid, task, config.max_positions, view)
    train = splits.train
    prepared = Prepared(recipe, config, task, train, task.examples(train), valid, task.examples(valid))
    _report(prepared, view)
    return prepared


def _tokenizers(recipe: Recipe, pairs: Pairs, folder: Path, view: View) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run where it has them already, so that a resumed run reads as it read before."""
    settings = recipe.tokenizer
    own = folder / "tokenizer.json"
    if own.is_file():
        source = Tokenizer.load(own, dropout=settings.dropout)
        other = folder / "target_tokenizer.json"
        return source, source if settings.joint else Tokenizer.load(other, dropout=settings.dropout)
    view.say(f"tokenizer: {settings.kind}, {'joint' if settings.joint else 'one a side'} …")
    if settings.joint:
        source = target = make_tokenizer([*pairs.sources, *pairs.targets], settings)
    else:
        source, target = (make_tokenizer(texts, settings) for texts in (pairs.sources, pairs.targets))
    save_tokenizers(folder, source, target)
    return source, target


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """tokenizer.json, and target_tokenizer.json where the target has its own."""
    folder.mkdir(parents=True, exist_ok=True)
    if target is not source:
        target.save(folder, "target_tokenizer.json")
    source.save(folder, append_eos=True)


def _short_enough(pairs: Pairs, task: Translate, positions: int, view: View) -> Pairs:
    """The validation pairs that the model can read; found out, and said, before hours of training."""
    fits = task.examples(pairs).lengths.max(axis=1) <= positions
    if fits.all():
        return pairs
    name = pairs.report.name
    if not fits.any():
        raise DataError(
            f"{name}: no validation pair has at most {positions} tokens; raise model.max_positions"
        )
    view.say(
        f"{name}: {int((~fits).sum()):,} of {len(fits):,} pairs are longer than {positions} tokens: left out"
    )
    return pairs.select(np.flatnonzero(fits).tolist(), name)


def _report(prepared: Prepared, view: View) -> None:
    lengths = prepared.train.lengths
    settings = prepared.batches
    plan = prepared.plan(prepared.train, 0)
    if dropped := int(overlong(lengths, settings).sum()):
        fate = {"drop": "left out", "truncate": "cut"}[settings.on_overflow]
        view.say(
            f"{dropped:,} of {len(lengths):,} pairs are longer than {settings.max_length} tokens: {fate}"
        )
    kept = np.concatenate(plan)
    tokens = int(lengths[kept, 1].sum())
    sizes = f"{prepared.task.source.vocab_size:,}"
    if not prepared.recipe.tokenizer.joint:
        sizes += f" + {prepared.task.target.vocab_size:,}"
    view.say(
        f"an epoch: {len(kept):,} pairs, {tokens:,} target tokens, {len(plan):,} batches, "
        f"{padding_share(lengths, plan):.1%} padding; vocabulary {sizes}"
    )
