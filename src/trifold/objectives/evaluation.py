"""Validation of an objective: its options, its state while it runs, and its result."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from trifold.batches import BatchSettings
from trifold.generation_config import GenerationConfig
from trifold.nn import Transformer
from trifold.scores.bootstrap import Resampled
from trifold.text.spans import Ids

MAX_LOSS = 700.0  # of which the exponential is finite
# The statistic of `Objective.measure` with the logits of a linear path.
PATH_LOGITS = "path_logits"
# The two parts of a model whose logits are added, in the words of a comparison.
PARTS_OF_MODEL = ("its linear path alone", "its Transformer alone")


class Sample(NamedTuple):
    """The model's output for one validation row; `reference` is the expected output, if known."""

    source: str
    reference: str | None
    ours: str


class ConstantAnswer(NamedTuple):
    """The best answer that is the same for every row, in words, and the value that a score or the
    loss then has.
    """

    words: str
    score: str
    value: float


class Balance(NamedTuple):
    """A score of a classifier in which all classes have the same weight, and the answer that it
    gives to all rows; None if it tells some of them apart.
    """

    score: float
    answer: str | None = None


class Evaluation(NamedTuple):
    """Scores by name, generated samples, and a signature of each score that states how it is
    computed.

    confidences: the probability of the prediction in each sample, of a task that predicts labels.
    resampled: computes the scores of some of the examples; None if there are too few of them.
    loss: in nats per token, without smoothing. value: what `best_by` names; larger is better.
    balance: of a classifier. shift (C,): what the biases of the classes gain by thresholds that are
    chosen on these rows; shift_words: in words. parts: scores of parts of the model alone.
    """

    scores: dict[str, float]
    samples: Sequence[Sample] = ()
    signatures: Sequence[str] = ()
    confidences: Sequence[float] = ()
    resampled: Resampled | None = None
    loss: float = math.nan
    value: float = math.nan
    balance: Balance | None = None
    shift: Any = None
    shift_words: str = ""
    parts: Mapping[str, Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True)
class EvalContext:
    """Options of a validation.

    batches: the recipe's limits; rows are neither dropped nor truncated. samples: number of texts
    to generate if the scores do not need all of them. poll: called often; an exception that it
    raises ends the validation. chooses: whether thresholds are chosen on these rows.
    """

    batches: BatchSettings
    generation: GenerationConfig
    samples: int
    seed: int
    poll: Callable[[], None]
    chooses: bool = False


class EvalRun(NamedTuple):
    """A validation in progress: its arguments, and the sums of `Objective.measure`, with the mean
    "loss", and "rows": the numbers of the examples of each batch.
    """

    model: Transformer
    rows: Any
    examples: Any
    context: EvalContext
    sums: dict[str, Any]

    @property
    def perplexity(self) -> float:
        """exp of the loss, finite."""
        return math.exp(min(self.sums["loss"], MAX_LOSS))

    def by_row(self, name: str) -> list[Any]:
        """A statistic of `measure` that has a value for each row of a batch, in the order of the
        examples.
        """
        numbered = zip(chain(*self.sums["rows"]), chain(*self.sums[name]), strict=True)
        return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]

    @property
    def sample_rows(self) -> Ids:
        """The numbers of the examples to show."""
        return np.arange(min(self.context.samples, len(self.examples.lengths)))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device
