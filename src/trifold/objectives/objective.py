"""Base classes of the objectives and of their settings, and the interface that training calls.

An objective file reads in the order of the data: settings -> rows -> examples -> batch -> loss
terms -> scores. Rows, examples and batches have types that only the objective knows. Training needs
the lengths of the examples and the number of target tokens of a batch.
"""

from __future__ import annotations

import math
import shlex
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.batches import BatchSettings
from trifold.batches.plan import plan_all
from trifold.data import DataSettings, Rows, read_splits
from trifold.errors import DataError, SettingsError
from trifold.folders import AnyPath, named
from trifold.hub import save_model
from trifold.nn import ModelConfig, Transformer
from trifold.nn.checks import first_problem
from trifold.nn.config import Head, Shape
from trifold.objectives.batch import Batch, Examples, LossTerm
from trifold.objectives.evaluation import (
    MAX_LOSS,
    ConstantAnswer,
    EvalContext,
    EvalRun,
    Evaluation,
)
from trifold.scores.bootstrap import Resampled, sums_scorer
from trifold.settings import Settings
from trifold.text import Tokenizer, TokenizerSettings, Truncation, make_tokenizer
from trifold.text.spans import Ids
from trifold.text.special_tokens import merge_files, names_of
from trifold.text.tokenizer import TARGET_TOKENIZER_FILE, TOKENIZER_FILE

# The published model of a task that leaves all but the shape of its model open.
PRESET_OF_SHAPE = {
    "decoder": "gpt2",
    "encoder": "bert-base",
    "encoder-decoder": "transformer-base",
}
FILL_MASK = 'predict {folder} "a text with a {mask}"'  # command that uses a model
AnyRows = TypeVar("AnyRows", bound=Rows)
DataKind = Literal["pairs", "table", "images", "documents", "parts"]
FEWEST_BATCHES = 10  # that are resampled
# Defaults of a recipe that leaves the model to its task: a model of a published family.
ENCODER: Mapping[str, Mapping[str, Any]] = {
    "model": {"preset": "bert-base"},
    "tokenizer": {"special": ["cls", "sep", "mask"]},
}

# --- building -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildContext:
    """The parts of a recipe that an objective is built from.

    folder: holds the tokenizers of the run; existing ones are loaded. report: receives lines about
    the data. start: the config of the model that training starts from. is_trained: whether `model`
    is the config of a trained model, which is measured. is_counted: whether rows are only counted,
    to choose the positions of the model.
    """

    data: DataSettings
    tokenizer: TokenizerSettings
    model: ModelConfig
    batches: BatchSettings
    seed: int
    folder: AnyPath
    report: Callable[[str], None]
    start: ModelConfig | None = None
    is_trained: bool = False
    is_counted: bool = False

    @property
    def width(self) -> int:
        """Largest number of tokens of a row: the recipe's limit, at most the model's positions."""
        return min(self.batches.max_length or self.model.max_positions, self.model.max_positions)

    @property
    def text_width(self) -> int | None:
        """The number of tokens that texts are truncated to; None if the recipe does not
        truncate.
        """
        if self.batches.on_overflow != "truncate":
            return None
        return self.width

    def require_data(self) -> None:
        """Raises SettingsError if the recipe has no training data or no validation data."""
        if self.data.train is None:
            raise SettingsError(
                "data.train: no training data; set data.train=FILE, or FILE,FILE for pairs"
            )
        if self.data.valid is None and not self.data.holdout:
            held_out = (
                "data.holdout=0.1 (a share) or data.holdout=500 (a number) to hold out "
                "training data"
            )
            raise SettingsError(
                f"data.valid: no validation data; set data.valid=FILE, or {held_out}"
            )

    def read(self, read: Callable[[Any, DataSettings, str], AnyRows]) -> tuple[AnyRows, AnyRows]:
        """Training and validation rows, whose reports are printed."""
        self.require_data()
        train, valid, _ = read_splits(self.data, self.seed, read)
        self.report(str(train.report))
        if self.data.folds is None:
            self.report(str(valid.report))
        return train, valid

    def select_readable(
        self, rows: AnyRows, examples: Examples, noun: str, remedy: str = ""
    ) -> AnyRows:
        """The validation rows whose examples fit the model's positions. Reports how many are left
        out.
        """
        if self.is_counted:
            return rows
        positions = self.model.max_positions
        name = rows.report.name
        fits = examples.lengths.max(axis=1) <= positions
        if fits.all():
            return rows
        if not fits.any():
            raise DataError(
                f"{name}: no validation row has at most {positions} tokens; raise "
                f"model.max_positions{remedy}"
            )
        left_out = int((~fits).sum())
        self.report(
            f"{name}: {left_out:,} of {len(fits):,} {noun} are longer than {positions} tokens: "
            "left out"
        )
        return rows.select(np.flatnonzero(fits).tolist(), name)

    def report_labels(self, noun: str, labels: Sequence[str]) -> None:
        listed = ", ".join(f"{name:.40}" for name in labels)
        self.report(shorten(f"{noun}: {listed}", 80, placeholder=f" … ({len(labels):,} {noun})"))

    def load_or_train_tokenizer(
        self,
        texts: Callable[[], Iterable[str]],
        name: str = TOKENIZER_FILE,
        note: str = "",
        **save: Any,
    ) -> Tokenizer:
        """The tokenizer of the run, so that a resumed run encodes as before; else a new one trained
        on `texts()`.

        name: its file. note: for the report. save: options of `Tokenizer.save` for a new one.
        """
        if (path := named(self.folder) / name).exists():
            found = Tokenizer.load(path, dropout=self.tokenizer.dropout)
            return self._fitted(found, name)
        self.report(f"tokenizer: {self.tokenizer.file or self.tokenizer.kind}{note} …")
        tokenizer = make_tokenizer(texts(), self.tokenizer)
        folder = named(self.folder).path
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder, name, **save)
        return tokenizer

    def _fitted(self, tokenizer: Tokenizer, name: str) -> Tokenizer:
        """The tokenizer for the tables of a trained model; a new model gets the tables that it
        needs.
        """
        if not self.is_trained:
            return tokenizer
        if name == TARGET_TOKENIZER_FILE:
            return tokenizer.for_model(self.model.output_vocab_size)
        return tokenizer.for_model(self.model.vocab_size)

    def config_for(self, tokenizer: Tokenizer) -> ModelConfig:
        """The model's config with the vocabulary size and special ids of its only tokenizer. A
        table of the decoder has at least that size.
        """
        size = tokenizer.vocab_size
        target_size = self.model.target_vocab_size
        if target_size is not None:
            target_size = max(target_size, size)
        sizes = {"vocab_size": size, "target_vocab_size": target_size}
        ids = {f"{role}_id": tokenizer.required(role) for role in ("pad", "bos", "eos")}
        return self.model.model_copy(update=sizes | ids)


@dataclass(frozen=True)
class TaskBundle:
    """An objective with its rows and the model's config, completed by the tokenizers.

    redraws: whether the training rows are encoded again, with another draw, in an epoch.
    initialize: sets the initial weights of a new model, if they are not random.
    """

    objective: Objective
    config: ModelConfig
    train: Any
    valid: Any
    redraws: Callable[[int], bool] = lambda _epoch: False
    initialize: Callable[[Transformer], None] | None = None


class ObjectiveSettings(Settings):
    """Base of the settings of an objective; `kind` selects the class.

    data_kind: what the objective reads: pairs of texts, a table, images, raw documents, or parts
        with their own data.
    command: the command that uses a trained model. pipeline_tag: what hubs call the task, or "".
    unused_keys: recipe keys that have no effect and
        are rejected.
    supports_cache: whether it reads tokens from data.cache. shapes, heads: model shapes that the
    objective supports, and heads that it requires. defaults: settings, by group, of a recipe with
    neither model.preset nor model.shape.
    special: settings of a new tokenizer that the objective requires with any model. wraps: whether
    it trains another objective, its setting `of`.
    """

    data_kind: ClassVar[DataKind] = "documents"
    command: ClassVar[str] = 'generate {folder} "your text"'
    pipeline_tag: ClassVar[str] = ""
    unused_keys: ClassVar[tuple[str, ...]] = ("tokenizer.dropout", "tokenizer.dropout_epochs")
    supports_cache: ClassVar[bool] = False
    shapes: ClassVar[tuple[Shape, ...]] = ("encoder-decoder",)
    heads: ClassVar[tuple[Head, ...]] = ("lm",)
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    special: ClassVar[Mapping[str, Any]] = {}
    wraps: ClassVar[bool] = False

    if TYPE_CHECKING:  # declared by each subclass, whose fields keep their order

        @property
        def kind(self) -> str: ...
        @property
        def best_by(self) -> str: ...

    @property
    def evaluated(self) -> ObjectiveSettings:
        """Settings of the objective that a validation evaluates; of an objective that wraps
        another, the inner one.
        """
        return self

    def usage(self, folder: Path) -> str:
        """The command that uses the model of a run with these settings."""
        return f"trifold {self.command_for(shlex.quote(str(folder)), folder / 'model')}"

    def command_for(self, name: str, model: AnyPath) -> str:
        """The arguments that use the model in a folder, which they call `name`."""
        mask = names_of(merge_files(named(model)), {}).get("mask_token", "<mask>")
        return self.evaluated.command.format(folder=name, mask=mask)

    @classmethod
    def with_heads(cls, config: ModelConfig) -> ModelConfig:
        """The config, with the heads of the objective if it lacks one of them."""
        needed = cls.heads_for(config.shape)
        if set(needed) <= set(config.chosen_heads):
            return config
        return config.model_copy(update={"heads": needed})

    @classmethod
    def heads_for(cls, shape: Shape) -> tuple[Head, ...]:
        """The heads that the objective requires of a model of this shape."""
        return cls.heads

    @classmethod
    def defaults_for(cls, shape: Shape | None) -> Mapping[str, Mapping[str, Any]]:
        """The defaults of a recipe that sets nothing of its model but the shape, if that."""
        if shape is None:
            return cls.defaults
        return {**cls.defaults, "model": {"preset": PRESET_OF_SHAPE[shape]}}

    @classmethod
    def initial_model(cls, task: Mapping[str, Any]) -> ModelConfig | None:
        """The config that the initial weights of a new model need, from the values of the task in
        a recipe; None if they are random.
        """
        return None

    def model_problem(self, config: ModelConfig) -> str | None:
        """Why the objective does not support the model: shape, heads, or a cap of the logits; None
        if it does.
        """
        if config.shape not in self.shapes:
            return (
                f"model.shape: {config.shape} does not support task.kind: {self.kind}, which "
                f"requires shape {' or '.join(self.shapes)}; set model.shape={self.shapes[0]}, or "
                "choose another task"
            )
        if config.logit_soft_cap is not None and "lm" in self.heads_for(config.shape):
            return (
                "model.logit_soft_cap: not supported in training, which never materializes "
                "the logits; remove it"
            )
        needed = self.with_heads(config).chosen_heads
        if missing := sorted(set(needed).difference(config.chosen_heads)):
            return (
                f"model.heads: {', '.join(missing)} is missing; set "
                f"model.heads=[{', '.join(needed)}]"
            )
        problem = first_problem(config)
        return None if problem is None else str(problem)

    def check_unused_keys(self, context: BuildContext) -> None:
        """Raises SettingsError if the recipe sets a key that this objective ignores."""
        for group, _, key in (name.partition(".") for name in self.unused_keys):
            part = context.data if group == "data" else context.tokenizer
            if getattr(part, key) != type(part).model_fields[key].get_default():
                raise SettingsError(
                    f"{group}.{key}: has no effect on a task of kind {self.kind}; remove it, or "
                    "choose another task"
                )
        if context.data.cache is not None and not self.supports_cache:
            raise SettingsError(
                f"data.cache: a task of kind {self.kind} reads its text into memory; remove "
                "data.cache"
            )

    def build(self, context: BuildContext) -> TaskBundle:
        """Read the data, load or train the tokenizers, and construct the objective. Reports what is
        left out.

        Raises SettingsError or DataError before training starts.
        """
        raise NotImplementedError


# --- objective ------------------------------------------------------------------------------------


class Objective(ABC):
    """What training calls: `examples`, `batch`, `counts`, `loss`, `evaluate`, `save`.

    row_name, read_name, token_name: names in reports of rows, tokens of their last side, and target
    tokens. packs: whether a batch is one row without padding. gathers: whether the loss is a
    function of all rows of an update: the `table_loss` of the tables (rows, …), concatenated, that
    `table` computes from its batches. fills_width: whether examples are as long as the model
    allows, however long the texts are. compares: whether the model reads two texts that it has to
    compare. generation: settings of generation that the saved model
    needs beside those of the recipe. adds_modules: whether `add_modules` adds some.
    predicts_tokens: whether the labels are tokens that the language-model head predicts from
    `token_states`, one after the other.
    """

    row_name = "texts"
    read_name = "tokens"
    token_name = "tokens"
    packs = True
    gathers = False
    fills_width = False
    compares = False
    table: Callable[[Transformer, Any], Tensor]
    table_loss: Callable[[Tensor], Tensor]
    settings: Any  # ObjectiveSettings
    tokenizer: Tokenizer
    save_options: Mapping[str, Any] = {}
    generation: Mapping[str, Any] = {}
    adds_modules = False
    predicts_tokens = False

    @cached_property
    def truncation(self) -> Truncation:
        """The texts that `examples` has truncated, of all sets of rows; reported once."""
        return Truncation()

    @property
    def starts_fitted(self) -> bool:
        """Whether a new model is worth a validation before the first step, because a part of it is
        fitted.
        """
        return False

    @property
    def needed_share(self) -> float:
        """The share of the loss before the first step, of fitted weights, that training must get
        below.
        """
        return 1.0

    @property
    def loss_unit(self) -> str:
        """The unit of the logged loss."""
        return f"nats per {self.token_name.removesuffix('s')}"

    @abstractmethod
    def examples(self, rows: Any, draw: int | None = None) -> Examples:
        """Encode rows. `draw` (64 bits of seed and epoch) is given if they are encoded again in
        each epoch.
        """

    @abstractmethod
    def batch(self, examples: Any, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        """Build a batch of the given examples, truncated to `width` tokens if given.

        Random choices are a function of `draw` (64 bits of seed and epoch) and the example's
        number, and do not depend on the other examples.
        """

    def at_step(self, batch: Any, step: int) -> Any:
        """The batch as training uses it in update number `step`, counted from 1. Validation does
        not call it.
        """
        return batch

    def counts(self, batch: Any) -> dict[str, int]:
        """The count of each loss term, known before the forward pass."""
        return {"tokens": batch.tokens}

    @abstractmethod
    def loss(self, model: Transformer, batch: Any) -> dict[str, LossTerm]:
        """Loss terms by name; "tokens" is the one that is logged, in nats per token."""

    def token_states(self, model: Transformer, batch: Any) -> Tensor:
        """The states (N, E) from which the language-model head predicts the labels (N,) of a
        batch.
        """
        raise NotImplementedError

    def measure(self, model: Transformer, batch: Any) -> dict[str, Any]:
        """Statistics of one validation batch, which are added over all batches (lists: joined).

        "nll" and "tokens" are required.
        """
        term = self.loss(model, batch)["tokens"]
        nll = term.sum if term.nll is None else term.nll
        return {"nll": float(nll), "tokens": term.count}

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Scores from the sums of `measure`, and samples, without loss and value."""
        return Evaluation(self.scores_of_sums(run.sums))

    def scores_of_sums(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The scores that are functions of the sums of `measure`, which `trifold compare`
        resamples.
        """
        if "correct" not in sums:
            return {}
        return {"accuracy": 100 * sums["correct"] / max(sums["tokens"], 1)}

    @torch.no_grad()
    def evaluate(
        self, model: Transformer, rows: Any, examples: Any, context: EvalContext
    ) -> Evaluation:
        """Evaluate a model in evaluation mode on rows and their examples; none is dropped or
        truncated.
        """
        sums: dict[str, Any] = defaultdict(int)
        device = next(model.parameters()).device
        batches = []
        for batch_rows in plan_all(examples.lengths, context.batches):
            context.poll()
            measured = self.measure(model, self.batch(examples, batch_rows).to(device))
            batches.append(measured)
            for name, value in {"rows": [batch_rows], **measured}.items():
                sums.setdefault(name, type(value)())  # 0, or an empty list
                sums[name] += value
        loss = sums["nll"] / max(sums["tokens"], 1)
        sums["loss"] = loss
        evaluation = self.compute_scores(EvalRun(model, rows, examples, context, sums))
        if evaluation.resampled is None:
            evaluation = evaluation._replace(
                resampled=self._resampled(batches, np.concatenate(sums["rows"]))
            )
        best_by = self.settings.best_by
        if best_by == "loss":
            return evaluation._replace(loss=loss, value=-loss)
        return evaluation._replace(loss=loss, value=evaluation.scores[best_by])

    def _resampled(self, batches: Sequence[Mapping[str, Any]], rows: Ids) -> Resampled | None:
        """The scores of some of the examples, if `measure` returns a row for each; otherwise of
        some of the batches, if there are enough. batches: the statistics of each; rows: the numbers
        of the examples of all.
        """
        examples = len(rows)
        columns = _rows_of(batches, rows)
        if columns:

            def of_rows(rows: Ids) -> Mapping[str, float]:
                return self.scores_of_sums({name: [x[rows]] for name, x in columns.items()})

            return Resampled(of_rows, examples, self.row_name, columns)
        if len(batches) < FEWEST_BATCHES:
            return None
        numbers = [
            {name: value for name, value in batch.items() if not isinstance(value, list)}
            for batch in batches
        ]

        def of_sums(sums: Mapping[str, Any]) -> Mapping[str, float]:
            loss = float(sums["nll"] / max(sums["tokens"], 1))
            perplexity = math.exp(min(loss, MAX_LOSS))
            return {**self.scores_of_sums(sums), "loss": loss, "perplexity": perplexity}

        return Resampled(sums_scorer(numbers, of_sums), len(batches), "batches")

    def score_notes(self) -> Sequence[str]:
        """What the names of the scores leave open, a line for each."""
        return ()

    def constant_answer(self, examples: Any) -> ConstantAnswer | None:
        """What a model is compared with that ignores its input; None if the task has no such
        answer.
        """
        return None

    def counted_settings(self, examples: Any) -> dict[str, Any]:
        """Settings of the task, by key, that follow from the training examples."""
        return {}

    def shifted_weights(self, weights: dict[str, Tensor], shift: Any) -> dict[str, Tensor]:
        """The weights of a model whose classes have other thresholds; see `Evaluation`."""
        return weights

    def saved_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of the model that is validated and saved, from those that are trained."""
        return weights

    def trained_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `saved_weights`, for a model that training starts from."""
        return weights

    def add_modules(  # noqa: B027 (most add none)
        self, model: Transformer, folder: AnyPath | None = None, *, required: bool = False
    ) -> None:
        """Add to a model what is trained beside it and is not in its config.

        folder: of the model; its modules have new values if the folder lacks them. required: raise
        CheckpointError in that case.
        """

    def save_model(
        self, folder: Path, model: Transformer, generation: Mapping[str, object]
    ) -> None:
        """Write the model, and what `add_modules` has added. generation: settings by our names."""
        save_model(folder, model, generation=generation)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the objective beside the weights, in values of JSON."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Restore what `state` returned. saved: of a checkpoint, which may be of another version
        and lack it.
        """

    def save(self, folder: Path) -> None:
        """Write the tokenizers next to a model."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder, **self.save_options, overwrite=True)


def _rows_of(batches: Sequence[Mapping[str, Any]], rows: Ids) -> dict[str, NDArray[Any]]:
    """The statistics that are arrays with a row for each example, in the order of the examples."""
    columns = dict[str, NDArray[Any]]()
    for name, first in batches[0].items():
        if isinstance(first, list) and all(isinstance(array, np.ndarray) for array in first):
            columns[name] = np.concatenate([array for batch in batches for array in batch[name]])
    if any(len(column) != len(rows) for column in columns.values()):
        return {}
    order = np.argsort(rows)
    return {name: column[order] for name, column in columns.items()}
