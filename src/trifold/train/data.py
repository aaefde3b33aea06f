"""From a recipe to batches: the objective, its examples, the plan of an epoch, and batches from any
position.
"""

import platform
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.batches import BatchSettings, Blocks, deal_batch, overlong, padding_share, plan_epoch
from trifold.batches.plan import Plan
from trifold.costs import count_parameters
from trifold.errors import DataError, SettingsError
from trifold.hub import load_model, read_config, resolve
from trifold.hub.folder import describe_misfit
from trifold.hub.generation import check_limits
from trifold.hub.model_config import check_positions
from trifold.hub.peft import adapter_tensors
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import REGRESSION
from trifold.objectives.batch import Batch, Examples
from trifold.objectives.labels import class_names
from trifold.objectives.objective import BuildContext, Objective, TaskBundle
from trifold.recipe import Recipe
from trifold.text import make_tokenizer
from trifold.train.monitor import View
from trifold.train.parameters import add_adapters, quantize_blocks


@dataclass
class TrainingData:
    """The objective of a recipe, its examples, and the plan of their batches."""

    recipe: Recipe
    bundle: TaskBundle
    train: Examples
    valid: Examples
    report: Callable[[str], None]

    @property
    def objective(self) -> Objective:
        return self.bundle.objective

    @property
    def config(self) -> ModelConfig:
        return self.bundle.config

    def seed_of(self, epoch: int) -> int:
        """64 bits that determine all randomness in the data of an epoch."""
        drawn = np.random.SeedSequence([self.recipe.train.seed, epoch]).generate_state(1, np.uint64)
        return int(drawn[0])

    def examples(self, epoch: int) -> Examples:
        """The training examples, tokenized again in epochs for which the objective requests it."""
        if not self.bundle.redraws(epoch):
            return self.train
        return self.objective.examples(self.bundle.train, draw=self.seed_of(epoch))

    def plan(self, examples: Examples, epoch: int) -> Plan:
        """The batches of an epoch: a function of seed and epoch, so that resuming is seeking."""
        if isinstance(examples, Blocks):
            return examples.plan(self.batches, seed=self.recipe.train.seed, epoch=epoch)
        return plan_epoch(examples.lengths, self.batches, seed=self.recipe.train.seed, epoch=epoch)

    @property
    def batches(self) -> BatchSettings:
        """The batch settings of the recipe, with `max_length` limited to the positions of the
        model.
        """
        settings = self.recipe.batch
        limit = min(settings.max_length or self.config.max_positions, self.config.max_positions)
        return settings.model_copy(update={"max_length": limit})

    @property
    def max_length(self) -> int | None:
        """The length to which rows are truncated, if the recipe requests it."""
        return self.batches.max_length if self.recipe.batch.on_overflow == "truncate" else None

    @property
    def fingerprint(self) -> str:
        """The number of training rows and a checksum of their lengths, to compare the data of ranks
        and sessions.
        """
        if isinstance(self.train, Blocks):
            return f"{len(self.train.lengths):,} rows of {self.train.tokens:,} tokens"
        return (
            f"{len(self.train.lengths):,} rows, checksum "
            f"{zlib.crc32(self.train.lengths.tobytes()):08x}"
        )

    def check_fingerprint(self, expected: str) -> None:
        """Raises DataError if the data of this rank differs from that of rank 0."""
        if self.fingerprint != expected:
            raise DataError(
                f"{self.recipe.data.train}: {platform.node()} reads {self.fingerprint}, but "
                f"rank 0 reads {expected}; "
                "use the same files and the same version of trifold on all machines"
            )

    def new_model(self) -> Transformer:
        """A model with weights drawn from the seed, or with those of `start_from`."""
        torch.manual_seed(self.recipe.train.seed)
        model = Transformer(self.config)
        start = self.recipe.start_from
        lora = self.recipe.train.lora
        fresh = set[str]()
        if start is not None:
            known = tokens = 0
            if self.recipe.tokenizer.add:
                tokens = self.objective.tokenizer.vocab_size
                known = make_tokenizer(
                    [], self.recipe.tokenizer.model_copy(update={"add": ()})
                ).vocab_size
                new = f"{tokens - known:,} new tokens"
                self.report(f"tokenizer.add: {new}; their rows begin as the mean of the others")
            line, fresh = start_from(
                start,
                model,
                range(known, tokens),
                self.objective.trained_weights,
                are_named=self.recipe.model.label_names is not None,
            )
            self.report(line)
        if self.bundle.initialize is not None:
            self.bundle.initialize(model)
        if lora is not None:
            if start is None:
                raise SettingsError("train.lora: adapters need a base model; set start_from")
            add_adapters(model, lora, fresh)
            weights = dict(model.named_parameters())
            adapter_tensors(
                resolve(start), self.config, weights, fresh
            )  # raises if they cannot be saved
            if lora.int8:
                quantize_blocks(model)
        return model


def load_data(recipe: Recipe, tokenizer_folder: Path, view: View) -> TrainingData:
    """Read data, train or load tokenizers, encode, and report skipped rows. Raises SettingsError or
    DataError.
    """
    parts = recipe.data, recipe.tokenizer, recipe.model, recipe.batch
    start = None if recipe.start_from is None else resolve(recipe.start_from)
    first = None if start is None else read_config(start)
    context = BuildContext(*parts, recipe.train.seed, tokenizer_folder, view.say, first)
    recipe.task.check_unused_keys(context)
    check_limits(recipe.generate.model_dump(), "generate.")
    if (warmup := recipe.train.warmup) >= (steps := recipe.train.steps):
        what = f"warmup ({warmup:,}) is not below steps ({steps:,})"
        view.say(f"warning: {what}; the learning rate only rises")
    bundle = recipe.task.build(context)
    if first is not None and recipe.tokenizer.file in (recipe.start_from, str(start)):
        size = max(bundle.config.vocab_size, first.vocab_size)  # its table may have unused rows
        bundle = replace(bundle, config=bundle.config.model_copy(update={"vocab_size": size}))
    train, valid = (bundle.objective.examples(rows) for rows in (bundle.train, bundle.valid))
    data = TrainingData(recipe, bundle, train, valid, view.say)
    check_positions(data.config, count_parameters(data.config), "model.max_positions: ")
    _report(data, view)
    if misfit := describe_misfit(data.config, start):
        view.say(misfit)
    return data


def _report(data: TrainingData, view: View) -> None:
    """Print the size of an epoch, and how many rows are too long."""
    lengths = data.train.lengths
    settings = data.batches
    objective = data.objective
    plan = data.plan(data.train, 0)
    if isinstance(data.train, Blocks):
        size = f"{len(lengths):,} rows, {data.train.tokens:,} {objective.token_name}"
        padding = "no padding"
    else:
        if count := int(overlong(lengths, settings).sum()):
            what = (
                f"{count:,} of {len(lengths):,} {objective.row_name} are longer than "
                f"{settings.max_length} tokens"
            )
            view.say(f"{what}: {'skipped' if settings.on_overflow == 'drop' else 'truncated'}")
        used = np.concatenate(plan)
        size = (
            f"{len(used):,} {objective.row_name}, {int(lengths[used, -1].sum()):,} "
            f"{objective.read_name}"
        )
        padding = "packed" if objective.packs else f"{padding_share(lengths, plan):.1%} padding"
    sizes = (data.config.vocab_size, data.config.target_vocab_size)
    known = " + ".join(f"{size:,}" for size in sizes if size is not None)
    vocabulary = f"; vocabulary {known}" if data.recipe.task.data_kind != "images" else ""
    batches = f"{len(plan):,} batch{'es' * (len(plan) != 1)}"
    view.say(f"an epoch: {size}, {batches}, {padding}{vocabulary}")


# --- the initial weights --------------------------------------------------------------------------

HEADS = ("heads.", "lm_head.")  # these parameters may be missing on either side
CLASSES = ("heads.sequence.out_proj.", "heads.token.out_proj.")  # with a row for each class
TABLES = (
    "_embeddings.tokens.weight",
    "lm_head.weight",
    "lm_head.bias",
)  # with a row for each token


def start_from(
    folder: str,
    model: Transformer,
    new: range = range(0),
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    *,
    are_named: bool = False,
) -> tuple[str, set[str]]:
    """Copy the weights of the model in `folder` (or hub id) to `model`. Heads that are missing, or
    have other sizes or labels, keep their initial values. The rows of `new` tokens become the mean
    of those before them (Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html).

    convert: makes the weights to train from those of the folder. are_named: whether the recipe
    names the labels, also those of a folder that only numbers its own. Returns a line about the
    weights that are new or not used, and the names of those with new values. Raises CheckpointError
    if the folder cannot be read, SettingsError listing the parameters that do not fit.
    """
    source, _ = load_model(resolve(folder), heads=model.config.chosen_heads)
    theirs, ours = (dict[str, Tensor](each.named_parameters()) for each in (source, model))
    theirs = convert(theirs)
    note = ""
    if classes := {n: theirs.pop(n) for n in ours.keys() & theirs.keys() if n.startswith(CLASSES)}:
        order = _rows_of_classes(source.config, model.config, are_named=are_named)
        if order is None:
            note = f"; {_describe_labels(source.config, model.config)}"
        else:
            theirs |= {name: rows[order] for name, rows in classes.items()}
    for name in ours.keys() & theirs.keys():
        if new and name.endswith(TABLES):
            table = theirs[name].detach()
            missing = max(0, len(ours[name]) - len(theirs[name]))
            mean = table[: new.start].mean(0, keepdim=True)
            theirs[name] = torch.cat([table, mean.expand(missing, *mean.shape[1:])])
            theirs[name][new.start : new.stop] = mean
    common = {name for name in theirs.keys() | ours.keys() if not name.startswith(HEADS)}
    wrong = sorted(name for name in common if _shape(theirs, name) != _shape(ours, name))
    if wrong:
        listed = ", ".join(
            f"{n} ({_shape(theirs, n)} there, {_shape(ours, n)} here)" for n in wrong[:8]
        )
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise SettingsError(
            f"start_from: {folder}: the model of the recipe has other parameters: "
            f"{listed}{more}; set the sizes "
            "under `model` to those of that folder's config.json, and tokenizer.file to its "
            "tokenizer"
        )
    copied = {
        name for name in ours.keys() & theirs.keys() if ours[name].shape == theirs[name].shape
    }
    model.load_state_dict({name: theirs[name] for name in copied}, strict=False)
    unset = ours.keys() - copied
    added = {name for name in copied if new and name.endswith(TABLES)}
    unused = dict(source.named_parameters()).keys() - copied
    counts = f"{_count('new', unset)}, {_count('not used', unused)}"
    return f"start_from: {len(copied):,} weights copied, {counts}{note}", unset | added


def _rows_of_classes(
    theirs: ModelConfig, ours: ModelConfig, *, are_named: bool
) -> list[int] | None:
    """The rows of our classes in their head; None if it has other classes. A regression has one
    row, whatever its name.
    """
    if theirs.n_labels != ours.n_labels:
        return None
    if ours.problem_type == REGRESSION or (are_named and theirs.label_names is None):
        return [*range(ours.n_labels)]
    for names in class_names(theirs):
        if {*names} == {*ours.labels}:
            return [names.index(name) for name in ours.labels]
    return None


def _describe_labels(theirs: ModelConfig, ours: ModelConfig) -> str:
    """Why the head is new."""
    there, here = (
        shorten(", ".join(map(repr, config.labels)), 60, placeholder=" …")
        for config in (theirs, ours)
    )
    remedy = "give the data the same ones to keep it"
    if theirs.label_names is None and theirs.n_labels == ours.n_labels:
        remedy = "name them in that order in model.label_names, with model.n_labels, to keep it"
    return f"the head is new, because its labels are {there}, and here {here}; {remedy}"


def _count(what: str, names: set[str]) -> str:
    listed = ", ".join(sorted(names)[:3]) + ", …" * (len(names) > 3)
    return f"{len(names):,} {what}" + f" ({listed})" * bool(names)


def _shape(parameters: dict[str, Tensor], name: str) -> str:
    return "x".join(map(str, parameters[name].shape)) if name in parameters else "missing"


# --- batches --------------------------------------------------------------------------------------


class RankBatch(NamedTuple):
    """The share of one rank in batch `number` of the plan of `epoch`.

    micro_batches: what the workers of this rank learn from. idle: batches that keep this rank in
    step with others.
    """

    epoch: int
    number: int
    micro_batches: list[Batch]
    idle: list[Batch]

    @property
    def end(self) -> tuple[int, int]:
        """The position in the data after this batch: epoch, and batch number in the epoch."""
        return self.epoch, self.number + 1


def iterate_batches(
    data: TrainingData,
    workers: int,
    epoch: int = 0,
    number: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
) -> Iterator[RankBatch]:
    """The share of `rank` in every batch from a position at which an update begins, without end."""
    accumulate = data.recipe.train.accumulate
    index = 0
    while True:
        examples = data.examples(epoch)
        seed = data.seed_of(epoch)
        lengths = examples.lengths
        plan = data.plan(examples, epoch)
        for position in range(number, len(plan)):
            share = deal_batch(
                lengths,
                plan[position],
                index,
                accumulate=accumulate,
                rank=rank,
                world=world,
                workers=workers,
            )
            index = (index + 1) % accumulate
            micro_batches, idle = (
                [data.objective.batch(examples, rows, data.max_length, draw=seed) for rows in parts]
                for parts in share
            )
            yield RankBatch(epoch, position, micro_batches, idle)
        epoch = epoch + 1
        number = 0


def batches_of_all_ranks(
    data: TrainingData, workers: int, taken: list[RankBatch], world: int
) -> list[Batch]:
    """The micro-batches of all ranks in an update; those of the other ranks are built again."""
    if world == 1:
        return [each for batch in taken for each in batch.micro_batches]
    found: list[Batch] = []
    for rank in range(world):
        again = iterate_batches(
            data, workers, taken[0].epoch, taken[0].number, rank=rank, world=world
        )
        found += [each for batch in islice(again, len(taken)) for each in batch.micro_batches]
    return found
