"""What the loop asks of a task, what a task is built from, and what building one gives.

A task stands on both sides of the model: rows -> examples -> batch -> loss terms, and `evaluate`, which looks up from
learning at rows that are not learnt. It knows its settings and its tokenizers, and nothing of the loop. Rows,
examples and batches are of types that only the task knows; the loop needs the lengths of examples and the tokens of a
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.batches import BatchSettings
from trifold.batches.plan import Plan
from trifold.data import DataSettings
from trifold.errors import SettingsError
from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Shape
from trifold.objectives.terms import Term
from trifold.text import TokenizerSettings

Say = Callable[[str], None]


class Examples(Protocol):
    """Encoded rows."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, sides) tokens of each example on each side; there are one or two sides."""


@runtime_checkable
class Planned(Protocol):
    """Examples that lay themselves into batches, because there are too many of them to be looked at one by one."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, sides) tokens of each example, at most."""

    @property
    def tokens(self) -> int:
        """In all of them together."""

    def plan(self, settings: BatchSettings, *, seed: int, epoch: int) -> Plan:
        """The batches of an epoch, a pure function like `plan_epoch`."""


class Batch(Protocol):
    """What one forward pass reads; frozen."""

    @property
    def tokens(self) -> int:
        """How many tokens are asked for: what the term "tokens" is divided by."""

    def to(self, device: torch.device) -> Self:
        """The same on another device."""


class Sample(NamedTuple):
    """What the model made of one row of validation data; `reference` is what should have come, where that is known."""

    source: str
    reference: str | None
    ours: str


class Evaluation(NamedTuple):
    """What a validation found.

    loss: nats a token. scores: by name. value: the one that `best_by` names, larger being better. samples: all that
    was generated. signatures: a line a score, which says how it was computed.
    """

    loss: float
    scores: dict[str, float]
    value: float
    samples: Sequence[Sample] = ()
    signatures: Sequence[str] = ()


@dataclass(frozen=True)
class Looking:
    """How a validation is done.

    batches: limits of the recipe; no row is left out or cut for them. samples: how many texts are generated where the
    scores do not need them all. poll: called now and then; what it raises ends the validation.
    """

    batches: BatchSettings
    generation: GenerationConfig
    samples: int
    seed: int
    poll: Callable[[], None]


class Task(Protocol):
    """What the loop asks.

    row_name, read_name and token_name: what its rows, the tokens of their (last) side and the tokens that a batch asks
    for are called, for people ("pairs", "target tokens", "target tokens"). packs: whether the rows of a batch lie in
    one long row, with no padding between them.
    """

    @property
    def row_name(self) -> str: ...
    @property
    def read_name(self) -> str: ...
    @property
    def token_name(self) -> str: ...
    @property
    def packs(self) -> bool: ...

    def examples(self, rows: Any, draw: int | None = None) -> Examples:
        """Rows as tokens. `draw` (64 bits of seed and epoch) is given where they are read anew each epoch."""

    def batch(
        self, examples: Any, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """The chosen examples, longer ones cut at `width` tokens where that is given.

        What is random in it is a function of `draw` (64 bits of seed and epoch) and the example's number alone, never
        of its place in the batch.
        """

    def counts(self, batch: Any) -> dict[str, int]:
        """What each term of the loss will be divided by, known before the forward pass."""

    def loss(self, model: Transformer, batch: Any) -> dict[str, Term]:
        """Named terms, as sums; "tokens" is the one that is logged, in nats a token."""

    def evaluate(self, model: Transformer, rows: Any, examples: Any, looking: Looking) -> Evaluation:
        """Measure a model in evaluation mode on rows and their examples."""

    def save(self, folder: Path) -> None:
        """Write the tokenizers beside a model."""


@dataclass(frozen=True)
class Asked:
    """What a recipe says beside the task's own settings, for who builds one.

    folder: where the run keeps its tokenizers; those that lie there are taken, so that a resumed run reads as it read
    before. say: hears, in whole lines, what was read and what became of it.
    """

    data: DataSettings
    tokenizer: TokenizerSettings
    model: ModelConfig
    batches: BatchSettings
    seed: int
    folder: Path
    say: Say

    @property
    def width(self) -> int:
        """Tokens that a row may have: the recipe's limit, and never more than the model has positions."""
        return min(self.batches.max_length or self.model.max_positions, self.model.max_positions)

    def refuse_other_shapes(self, kind: str, shape: Shape) -> None:
        """Raises SettingsError where the model has another shape than this kind of task needs."""
        if self.model.shape != shape:
            raise SettingsError(
                f"model.shape: {self.model.shape} does not go with task.kind: {kind}, which learns a model of "
                f"shape {shape}; set model.shape={shape}, or choose another task"
            )


def never(_epoch: int) -> bool:
    """Of rows that are read once and for all."""
    return False


@dataclass(frozen=True)
class Material:
    """What building gives: a task, the model's config with what the tokenizers decide, and the rows.

    vocabulary: its size, in words. anew: whether the training rows are read anew in an epoch, with a draw of its own.
    start: gives a new model the weights that it begins with, where these are not drawn.
    """

    task: Task
    config: ModelConfig
    train: Any
    valid: Any
    vocabulary: str
    anew: Callable[[int], bool] = never
    start: Callable[[Transformer], None] | None = None
