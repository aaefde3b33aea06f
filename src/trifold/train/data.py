"""The data of a run, from a recipe to batches: the objective, its examples, the plan of an epoch,
and batches from any position.
"""

import platform
import shlex
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from trifold.batches import BatchSettings, Blocks, deal_batch, overlong, padding_share, plan_epoch
from trifold.batches.plan import Plan
from trifold.costs import count_parameters
from trifold.errors import DataError, MissingColumnError, SettingsError, TrifoldError, plural
from trifold.folders import AnyPath, UntrustedPath
from trifold.hub import read_config, resolve
from trifold.hub.folder import describe_misfit
from trifold.hub.generation import check_limits
from trifold.hub.model_config import check_positions
from trifold.nn import ModelConfig
from trifold.objectives.batch import Batch, Examples
from trifold.objectives.linear_path import has_path
from trifold.objectives.objective import BuildContext, Objective, TaskBundle
from trifold.objectives.recognize import guess_recipe
from trifold.recipe import Recipe
from trifold.train.monitor import View
from trifold.train.sizing import size_model, size_steps

COMPARES = "the model compares the words of both texts, and only trifold loads it; transformers"


@dataclass
class TrainingData:
    """The objective of a recipe, its examples, and the plan of their batches.

    train, valid: the examples of the rows `bundle.train` and `bundle.valid`.
    """

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
        if self.recipe.batch.on_overflow != "truncate":
            return None
        return self.batches.max_length

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


def load_data(recipe: Recipe, tokenizer_folder: AnyPath, view: View) -> TrainingData:
    """Read data, train or load tokenizers, encode, and report skipped rows. Raises SettingsError or
    DataError.
    """
    start_folder: UntrustedPath | None = None
    start_config: ModelConfig | None = None
    if recipe.start_from is not None:
        start_folder = resolve(recipe.start_from)
        start_config = read_config(start_folder)
    context = BuildContext(
        data=recipe.data,
        tokenizer=recipe.tokenizer,
        model=recipe.model,
        batches=recipe.batch,
        seed=recipe.train.seed,
        folder=tokenizer_folder,
        report=view.say,
        start=start_config,
    )
    recipe.task.check_unused_keys(context)
    check_limits(recipe.generate.model_dump(), "generate.")
    recipe, context = size_model(recipe, context, partial(_build, recipe))
    bundle = _build(recipe, context)
    if start_config is not None and recipe.tokenizer.file in (recipe.start_from, str(start_folder)):
        # The table of tokens of that model may have unused rows.
        size = max(bundle.config.vocab_size, start_config.vocab_size)
        bundle = replace(bundle, config=bundle.config.model_copy(update={"vocab_size": size}))
    _check_start(bundle.config)
    bundle.objective.truncation.clear()  # some rows were encoded to build it
    train = bundle.objective.examples(bundle.train)
    valid = bundle.objective.examples(bundle.valid)
    data = TrainingData(recipe, bundle, train, valid, view.say)
    if recipe.sized:
        data.recipe = size_steps(recipe, bundle, train, data.batches.max_length)
        recipe.size_notes[:] = data.recipe.describe_sizes(start_config)
    for line in [*recipe.size_notes, *recipe.notes]:
        view.say(line)
    recipe.notes.clear()
    _warn_about_warmup(data)
    _report_truncation(data)
    check_positions(data.config, count_parameters(data.config), "model.max_positions: ")
    _report_epoch(data, view)
    if data.config.word_matches and "model.word_matches" in recipe.sized:
        switches = "model.word_matches=false"
        if has_path(data.config):
            switches += " model.linear_path=false"
        view.say(f"{COMPARES} also loads one that is trained with {switches}")
    elif misfit := describe_misfit(data.config, start_folder):
        view.say(misfit)
    return data


def _warn_about_warmup(data: TrainingData) -> None:
    """Print a warning if the learning rate never falls."""
    warmup = data.recipe.train.warmup
    steps = data.recipe.train.steps
    if warmup >= steps:
        data.report(
            f"warning: warmup ({warmup:,}) is not below steps ({steps:,}); the learning rate only "
            "rises"
        )


def _report_truncation(data: TrainingData) -> None:
    """Print how many texts were cut to fit, and the share of all tokens that they lost."""
    truncation = data.objective.truncation
    if not truncation:
        return
    kept = sum(int(examples.lengths.sum()) for examples in (data.train, data.valid))
    share = truncation.tokens / (kept + truncation.tokens)
    data.report(f"{truncation}: {share:.2%} of all")


def _build(recipe: Recipe, context: BuildContext) -> TaskBundle:
    """The data and the objective of a recipe. The error for a missing column also has the settings
    that fit the content of the file.
    """
    try:
        return recipe.task.build(context)
    except MissingColumnError as error:
        guess = None
        sources = recipe.data.train or ()
        if isinstance(sources, str):
            sources = [sources]
        with suppress(TrifoldError):
            if sources:
                guess = guess_recipe([*sources])
        if guess is None or guess.recipe != recipe.task.kind or not guess.settings:
            raise
        settings = shlex.join(guess.settings)
        raise DataError(f"{error.message}; you probably mean `{settings}`") from None


def _check_start(config: ModelConfig) -> None:
    """Raises SettingsError if the decoder begins with an id that its table lacks."""
    size = config.target_vocab_size or config.vocab_size
    start = config.decoder_start_id
    if start is not None and size is not None and start >= size:
        raise SettingsError(
            f"model.decoder_start_id: {start} is no token; the vocabulary has the ids 0 to "
            f"{size - 1:,}"
        )


def _report_epoch(data: TrainingData, view: View) -> None:
    """Print the size of an epoch, and how many rows are too long."""
    plan = data.plan(data.train, 0)
    if isinstance(data.train, Blocks):
        rows = len(data.train.lengths)
        size = f"{rows:,} rows, {data.train.tokens:,} {data.objective.token_name}"
        padding = "no padding"
    else:
        _report_overlong(data, view)
        size = _size_of_rows(data, plan)
        padding = _describe_padding(data, plan)
    batches = f"{len(plan):,} batch{'es' * (len(plan) != 1)}"
    view.say(f"an epoch: {size}, {batches}, {padding}{_describe_vocabulary(data)}")


def _report_overlong(data: TrainingData, view: View) -> None:
    """Print how many rows are longer than the limit, and the share of the tokens that are not
    learned, if there are any.
    """
    lengths = data.train.lengths
    settings = data.batches
    too_long = overlong(lengths, settings)
    count = int(too_long.sum())
    limit = settings.max_length
    if limit is None or not count:
        return
    handling = "truncated"
    lost = int(np.maximum(lengths - limit, 0).sum())
    if settings.on_overflow == "drop":
        handling = "skipped"
        lost = int(lengths[too_long].sum())
    view.say(
        f"{count:,} of {len(lengths):,} {data.objective.row_name} are longer than "
        f"{limit} tokens: {handling}, {lost / lengths.sum():.2%} of all tokens"
    )


def _size_of_rows(data: TrainingData, plan: Plan) -> str:
    """The number of rows in an epoch, and of the tokens that are learned."""
    used = np.concatenate(plan)
    tokens = int(data.train.lengths[used, -1].sum())
    objective = data.objective
    rows = plural(len(used), objective.row_name.removesuffix("s"))
    return f"{rows}, {plural(tokens, objective.read_name.removesuffix('s'))}"


def _describe_padding(data: TrainingData, plan: Plan) -> str:
    if data.objective.packs:
        return "no padding"
    return f"{padding_share(data.train.lengths, plan):.1%} padding"


def _describe_vocabulary(data: TrainingData) -> str:
    """The sizes of the vocabularies; images have none."""
    if data.recipe.task.data_kind == "images":
        return ""
    sizes = (data.config.vocab_size, data.config.target_vocab_size)
    listed = " + ".join(f"{size:,}" for size in sizes if size is not None)
    return f"; vocabulary {listed}"


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


class RankShare(NamedTuple):
    """The share of one rank in an update: in `train.accumulate` batches."""

    batches: list[RankBatch]

    @property
    def micro_batches(self) -> list[Batch]:
        """What the workers of this rank learn from."""
        return [micro_batch for batch in self.batches for micro_batch in batch.micro_batches]

    @property
    def idle(self) -> list[Batch]:
        """Batches that keep this rank in step with others."""
        return [idle for batch in self.batches for idle in batch.idle]

    @property
    def positions(self) -> list[list[int]]:
        """[epoch, number in the epoch] of each batch."""
        return [[batch.epoch, batch.number] for batch in self.batches]

    @property
    def end(self) -> tuple[int, int]:
        """The position in the data after the update: epoch, and batch number in the epoch."""
        last = self.batches[-1]
        return last.epoch, last.number + 1


def take_share(batches: Iterator[RankBatch], accumulate: int) -> RankShare | None:
    """The next `accumulate` batches; None if a signal has ended them."""
    taken = list(islice(batches, accumulate))
    if len(taken) < accumulate:
        return None
    return RankShare(taken)


def iterate_batches(
    data: TrainingData,
    workers: int,
    epoch: int = 0,
    number: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
) -> Iterator[RankBatch]:
    """The share of `rank` in every batch from a position at which an update begins, without end.

    number: of the first batch in the plan of `epoch`.
    """
    accumulate = data.recipe.train.accumulate
    index = 0  # of the batch in its update
    while True:
        examples = data.examples(epoch)
        seed = data.seed_of(epoch)
        lengths = examples.lengths
        plan = data.plan(examples, epoch)
        for current in range(number, len(plan)):
            share = deal_batch(
                lengths,
                plan[current],
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
            yield RankBatch(epoch, current, micro_batches, idle)
        epoch += 1
        number = 0


def batches_of_all_ranks(
    data: TrainingData, workers: int, taken: list[RankBatch], world: int
) -> list[Batch]:
    """The micro-batches of all ranks in an update; those of the other ranks are built again."""
    if world == 1:
        return RankShare(taken).micro_batches
    micro_batches: list[Batch] = []
    for rank in range(world):
        again = iterate_batches(
            data, workers, taken[0].epoch, taken[0].number, rank=rank, world=world
        )
        micro_batches += RankShare(list(islice(again, len(taken)))).micro_batches
    return micro_batches
