"""Classification of texts and of pairs of texts: one label, any number of labels, or a number
(regression).

rows -> example    a text or a pair with the tokenizer's special tokens, and its labels
example -> batch   packed texts
loss               one label: - Σ log P(label | text), label-smoothed; several: the sum over all;
                   a number: Σ (number - output)², of standardized numbers
scores             one label: accuracy, macro F1, F1 of two classes, Matthews; several: micro and
                   macro F1; a number: Pearson and Spearman
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PrivateAttr, field_validator
from torch import Tensor
from torch.nn import functional as F

from trifold.data import DataSettings, Rows, read_records
from trifold.errors import DataError, SettingsError, plural
from trifold.linear.hashed import SparseRows
from trifold.linear.shared_words import counted_pairs
from trifold.nn import ModelConfig, Transformer, ops
from trifold.nn.config import MULTI, REGRESSION, SINGLE, Shape
from trifold.objectives.batch import Batch, LossTerm
from trifold.objectives.evaluation import (
    PARTS_OF_MODEL,
    PATH_LOGITS,
    Balance,
    ConstantAnswer,
    EvalRun,
    Evaluation,
    Sample,
)
from trifold.objectives.label_config import config_with_labels
from trifold.objectives.labelled import (
    LM_LOSS,
    UNKNOWN,
    LabelledObjective,
    TextExamples,
    TextLossSettings,
    report_bare_pairs,
)
from trifold.objectives.labels import (
    ROLES,
    SCORES,
    SEVERAL,
    label_sets,
    leave_out_unknown,
    read_numbers,
    split_label,
    write_whole_numbers,
)
from trifold.objectives.linear_path import (
    Fitted,
    PairRows,
    PathRows,
    fit_pairs,
    fit_path,
    has_path,
    path_columns,
    with_fitting_path,
    with_path_of_pairs,
    without_path,
)
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.objectives.plans import PATH_BY_DEFAULT
from trifold.predict.classify import BOTH_ORDERS, add_orders, choose_labels, confidences
from trifold.scores.classification import (
    ClassificationScore,
    MultiLabelScore,
    balanced_accuracy,
    binary_f1,
    confusion_matrix,
)
from trifold.scores.correlation import CorrelationScore
from trifold.scores.thresholds import best_threshold, f1_of, macro_f1_of, matthews_of
from trifold.settings import nearest
from trifold.text.encoded import matches_of
from trifold.text.spans import Ids
from trifold.text.tokenizer import NO_LIMITS

# The last layer of the head.
_WEIGHT = "heads.sequence.out_proj.weight"
_BIAS = "heads.sequence.out_proj.bias"
# The linear path of the head, whose outputs are scaled, too.
_PATH = ("heads.sequence.path.weight", "heads.sequence.path.bias")
_SCALE = "heads.sequence.path.scale"

# Scores of two classes that depend on the threshold between them.
MEASURES = {"f1": f1_of, "macro_f1": macro_f1_of, "matthews": matthews_of}
CLEARLY_LOWER = 0.97  # of a loss
FEWEST_LABELS = 10  # validation rows with a label that gets a threshold of its own

if TYPE_CHECKING:
    BestBy: TypeAlias = str
else:
    BestBy = Literal[("auto", "loss", *dict.fromkeys(chain.from_iterable(SCORES.values())))]

# --- settings -> rows -----------------------------------------------------------------------------


class ClassifySettings(TextLossSettings):
    """Settings of classification; `data.columns` names the columns of text, pair (the second text)
    and label.
    """

    pipeline_tag = "text-classification"
    heads = ("sequence",)
    reads_whole = True

    kind: Literal["classify"] = "classify"
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="probability mass spread over all labels"
    )
    r_drop: float = Field(0.0, ge=0, description="weight of the divergence of two passes (R-Drop)")
    lm_loss: float = LM_LOSS
    both_orders: bool = Field(
        False,
        description="pairs: read in both orders, and add the two states before the last layer "
        "(similarity in GPT's fine-tuning)",
    )
    class_weights: Literal["balanced"] | dict[str, NonNegativeFloat] | None = Field(
        None,
        description="factors of the loss by label, by default 1; balanced: so that all labels "
        "have the same share",
    )
    label_separator: str = Field(
        ",", min_length=1, description="sign between the labels of a text that may have several"
    )
    best_by: BestBy = Field(
        "auto",
        description="auto: accuracy; of several labels, micro F1; of numbers, Pearson correlation",
    )

    thresholds: Literal["chosen", "half"] = Field(
        "chosen",
        description="F1 of several labels, and f1, macro_f1 or matthews of two classes as best_by: "
        "the probability above which a label is predicted, chosen on the validation rows and part "
        "of the head's bias; or ½",
    )

    _reads_pairs: bool = PrivateAttr(False)  # set by `build`

    @field_validator("class_weights", mode="before")
    @classmethod
    def _name_labels(cls, weights: Any) -> Any:
        """The weights with text as keys; YAML reads the label 1 as a number."""
        if not isinstance(weights, Mapping):
            return weights
        return {str(label): weight for label, weight in weights.items()}

    @classmethod
    def defaults_for(cls, shape: Shape | None) -> Mapping[str, Mapping[str, Any]]:
        """The usual ones, with a linear path beside a new model."""
        defaults = super().defaults_for(shape)
        return {**defaults, "model": {**defaults["model"], **PATH_BY_DEFAULT}}

    def model_problem(self, config: ModelConfig) -> str | None:
        if self.both_orders and config.classifier_transform is not None:
            return (
                "task.both_orders: adds states before a linear layer, and the head has another "
                "layer (model.classifier_transform); remove one of them"
            )
        return super().model_problem(config)

    def usage(self, folder: Path) -> str:
        return super().usage(folder) + ' --pair "another text"' * self._reads_pairs

    def build(self, context: BuildContext) -> TaskBundle:
        roles = dict(ROLES)
        if context.model.problem_type == MULTI:
            roles["label"] = SEVERAL

        characters = 0  # of all training texts, of which a fold has a part

        def read(source: Any, data: DataSettings, split: str) -> Rows:
            nonlocal characters
            rows = read_records(source, data, roles, split)
            if split == "train":
                characters = sum(map(len, rows.columns["text"]))
            if not data.holdout or split != "train":
                return rows
            # Before a part is held out, which would be smaller, or empty.
            write_whole_numbers(rows)
            return leave_out_unknown(context, rows)[0]

        train, valid = context.read(read)
        write_whole_numbers(train, valid)
        train, valid = leave_out_unknown(context, train, valid)
        pairs = [pair for pair in train.columns["pair"] if pair is not None]
        self._reads_pairs = bool(pairs)
        tokenizer = context.load_or_train_tokenizer(lambda: [*train.columns["text"], *pairs])
        if pairs:
            report_bare_pairs(context, tokenizer)
        elif self.both_orders:
            raise SettingsError(
                "task.both_orders: the rows have no second text; remove it, or set "
                "data.columns.pair"
            )
        if self.both_orders:
            tokenizer.settings = {**(tokenizer.settings or NO_LIMITS), BOTH_ORDERS: True}
        config = context.config_for(tokenizer)
        config = config_with_labels(context, config, train, valid, self.label_separator)
        if not context.is_trained:
            config = self._with_path(config, characters, pairs=bool(pairs))
        objective = Classify(
            self,
            tokenizer,
            config,
            context.text_width,
            context.report,
            pairs=bool(pairs),
            train=train,
        )
        bundle = objective.bundle(context, train, valid)
        if not has_path(config) or context.is_trained or context.is_counted:
            return bundle
        objective.path_rows = train
        return replace(bundle, initialize=objective.initialize)

    def _with_path(self, config: ModelConfig, characters: int, *, pairs: bool) -> ModelConfig:
        """The config with a linear path for its texts, which have so many characters, or for its
        pairs. What two texts share is the same in both orders, so that the path would count twice.
        """
        if not pairs:
            return with_fitting_path(config, characters)
        return without_path(config) if self.both_orders else with_path_of_pairs(config)


# --- examples, batches ----------------------------------------------------------------------------


class Scale(NamedTuple):
    """Mean and deviation of the numbers of a regression in the training rows."""

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, numbers: NDArray[np.floating], *, has_bias: bool) -> Scale:
        """The scale of the numbers of the training rows, for a head with or without bias.

        A head without bias cannot add the mean, so its numbers are only divided, by their root mean
        square.
        """
        if numbers.min() == numbers.max():
            return cls()
        numbers = numbers.astype(np.float64)
        mean = float(numbers.mean()) if has_bias else 0.0
        deviation = float(np.sqrt(((numbers - mean) ** 2).mean()))
        return cls(mean, deviation)


@dataclass(frozen=True)
class ExamplesInBothOrders(TextExamples):
    """N pairs in the order of the columns, and then all of them with their texts swapped."""

    @property
    def lengths(self) -> Ids:
        """(N, 2) tokens in each order, including special tokens."""
        return self.texts.lengths.reshape(2, -1).T


class Classify(LabelledObjective):
    """Classification. Labels (N,) are classes or numbers, or (N, C) 0 and 1. Classes beyond those
    of the model are labels not seen in training; they count as wrong.

    pairs: whether rows have a second text. train: the training rows, from which the weights and the
    scale are derived; None for a model that is only evaluated.
    weights (C,): factors of the loss by class. scale: the model in training predicts
    (number - mean) / deviation; the saved one has both in its head, and predicts the number.

    Raises SettingsError for settings that have no effect on the problem, and for weights of unknown
    labels.
    """

    token_name = "texts"

    def __init__(
        self,
        settings: ClassifySettings,
        *parts: Any,
        pairs: bool = False,
        train: Rows | None = None,
    ) -> None:
        super().__init__(settings, *parts)
        config = self.config
        self.pairs = self.compares = pairs
        self.problem = config.problem_type or SINGLE
        self.classes = config.n_labels
        scores = [name for name in SCORES[self.problem] if name != "f1" or self.classes == 2]
        best_by = settings.best_by
        if best_by == "auto":
            best_by = scores[0]
        if best_by not in ("loss", *scores):
            raise SettingsError(
                f"task.best_by: {best_by} is no score of {self.problem} with {self.classes} "
                f"labels; choose loss, {', '.join(scores)}"
            )
        for key in ("label_smoothing", "class_weights", "r_drop"):
            if self.problem != SINGLE and getattr(settings, key):
                raise SettingsError(
                    f"task.{key}: has no effect with model.problem_type={self.problem}; remove it"
                )
        self.settings = settings.model_copy(update={"best_by": best_by})
        self.weights: Tensor | None = None
        self.path_rows: Rows | None = None  # that the linear path is fitted on
        self.scale = Scale()
        if train is not None:
            self.weights = self._class_weights(train)
        if train is not None and self.problem == REGRESSION:
            self.scale = Scale.of(read_numbers(train), has_bias=config.classifier_bias)

    @property
    def loss_unit(self) -> str:
        if self.problem == REGRESSION:
            return "mean squared error"
        return super().loss_unit

    def examples(self, rows: Rows, draw: int | None = None) -> TextExamples:
        """Encode texts and number labels.

        Raises DataError for a second text that is missing or not expected, SettingsError for a
        missing </s>.
        """
        texts = rows.columns["text"]
        pairs = rows.columns["pair"]
        problem = "no second text" if self.pairs else "a second text"
        for pair, line in zip(pairs, rows.lines, strict=True):
            if (pair is None) == self.pairs:
                raise DataError(
                    f"{rows.report.name}:{line}: {problem}, unlike the training data; "
                    "use the same columns, or set data.columns.pair"
                )
        encoded = self.encode(rows, texts, pairs if self.pairs else None)
        end = self.config.eos_id
        if self.config.classifier_input == "eos" and any(end not in row.ids for row in encoded):
            raise SettingsError(
                "model.classifier_input: eos, but a text has no </s>, because its tokenizer "
                "appends none; set model.classifier_input=first or last"
            )
        labels = self._number_labels(rows)
        kind = TextExamples
        if self.settings.both_orders:
            kind = ExamplesInBothOrders
            compares = self.config.word_matches
            encoded += self.tokenizer.rows(pairs, texts, max_length=self.width, compares=compares)
        return kind(
            *self.tokens_and_types(encoded),
            labels,
            matches=matches_of(encoded),
            path=self._path_rows(rows),
        )

    # --- linear path ------------------------------------------------------------------------------

    @property
    def starts_fitted(self) -> bool:
        return has_path(self.config)

    def _path_rows(self, rows: Rows) -> PathRows | PairRows | None:
        """What the linear path reads of the rows."""
        if not has_path(self.config):
            return None
        if not self.pairs:
            logits = self._fitted_path.logits if rows is self.path_rows else None
            return PathRows(rows.columns["text"], logits)
        if rows is self.path_rows:
            return None  # the Transformer learns without it
        return PairRows(self._count_pairs(rows))

    def _count_pairs(self, rows: Rows) -> SparseRows:
        """The counted words of rows with two texts."""
        columns = path_columns(self.config)
        texts, pairs = (rows.columns[role] for role in ("text", "pair"))
        has_order = columns.order_numbers > 0
        return counted_pairs(texts, pairs, columns.compared, has_order=has_order)

    @cached_property
    def _fitted_path(self) -> Fitted:
        """The linear path of the training rows."""
        rows = self.path_rows
        assert rows is not None, "there are no training rows"
        labels = self._number_labels(rows)
        if self.problem == REGRESSION:
            labels = (labels - self.scale.mean) / self.scale.deviation
        fitted = self.fit_path(rows, labels)
        self.report(f"linear path: fitted on {plural(fitted.rows, 'row')}")
        return fitted

    def fit_path(self, rows: Rows, labels: NDArray[Any]) -> Fitted:
        """The linear path of the rows."""
        if self.pairs:
            return fit_pairs(self.config, self._count_pairs(rows), labels, self.weights)
        return fit_path(self.config, rows.columns["text"], labels, self.weights)

    @property
    def needed_share(self) -> float:
        """A mean with what learns alone must be clearly better: of 200 rows, the lowest of ten
        losses is often one or two percent lower by chance.
        """
        return CLEARLY_LOWER if self.learns_alone else 1.0

    @property
    def learns_alone(self) -> bool:
        """Whether the Transformer learns without the linear path."""
        return self.pairs

    def initialize(self, model: Transformer) -> None:
        """Begin with the fitted path."""
        self._fitted_path.copy_to(model)

    def _number_labels(self, rows: Rows) -> NDArray[Any]:
        if self.problem == REGRESSION:
            return read_numbers(rows)
        sets = label_sets(rows, self.problem, self.settings.label_separator)
        unseen = [[name for name in names if name not in self.numbers] for names in sets]
        if len(rows) and all(unseen):
            raise DataError(
                f"{rows.report.name}: no row has a label of the model "
                f"({', '.join(self.config.labels):.60}), but "
                f"{unseen[0][0]!r:.60} for example; is the column of the labels right?"
            )
        noun = "rows with labels"
        self.report_unseen(rows, chain(*unseen), noun, count=sum(map(bool, unseen)))
        for name in chain(*unseen):
            self.numbers.setdefault(name, len(self.numbers))
        if self.problem == SINGLE:
            return np.array([self.numbers[names[0]] for names in sets], dtype=np.int64)
        table = np.zeros((len(sets), len(self.numbers)), dtype=np.float32)
        for row, names in zip(table, sets, strict=True):
            row[[self.numbers[name] for name in names]] = 1
        return table

    def _class_weights(self, rows: Rows) -> Tensor | None:
        """(C,) the factors of the settings, or of the training rows. Raises SettingsError for an
        unknown label.
        """
        given = self.settings.class_weights
        names = self.config.labels
        if given is None:
            return None
        if given == "balanced":
            counts = np.bincount(self._number_labels(rows), minlength=self.classes)[: self.classes]
            return torch.from_numpy(len(rows) / (self.classes * np.maximum(counts, 1))).float()
        if unknown := sorted({*given}.difference(names)):
            raise SettingsError(
                f"task.class_weights.{unknown[0]}: no such label{nearest(unknown[0], [*names])}"
            )
        return torch.tensor([given.get(name, 1.0) for name in names])

    def batch(
        self, examples: TextExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> Batch:
        labels = torch.from_numpy(examples.labels[rows])
        if self.settings.both_orders:
            rows = np.concatenate([rows, rows + len(examples.labels)])
        return Batch(self.pack(examples, rows, width), labels, len(labels))

    # --- loss, scores -----------------------------------------------------------------------------

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = super().counts(batch) | self.lm_counts(batch)
        if self.settings.r_drop:
            counts["r_drop"] = batch.tokens
        return counts

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, C)."""
        return self._of_rows(model, ops.head_output(model, batch.inputs, "sequence"))

    def _of_rows(self, model: Transformer, logits: Tensor) -> Tensor:
        """The logits of the rows from those of all texts, which may have pairs in both orders."""
        if not self.settings.both_orders:
            return logits
        return add_orders(model, *logits.chunk(2))

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        outputs, terms = self.output_and_lm(model, batch, "sequence")
        logits = self._of_rows(model, outputs)
        if self.problem == REGRESSION:
            return terms | {"tokens": self._regression_loss(logits, batch)}
        smoothing = self.settings.label_smoothing
        loss = self.nll(logits, batch, smoothing, self.weights)
        nll = self.nll(logits.detach(), batch)
        if weight := self.settings.r_drop:  # Liang et al. 2021: two passes with different dropout
            again = self.logits(model, batch)
            loss = (loss + self.nll(again, batch, smoothing, self.weights)) / 2
            a = logits.log_softmax(-1)
            b = again.log_softmax(-1)
            terms["r_drop"] = LossTerm(
                ((a.exp() - b.exp()) * (a - b)).sum() / 2, batch.tokens, weight
            )
        return terms | {"tokens": LossTerm(loss, batch.tokens, nll=nll)}

    def _regression_loss(self, outputs: Tensor, batch: Batch) -> LossTerm:
        """Squared errors of standardized numbers; those of the numbers are logged."""
        mean, deviation = self.scale
        labels = (batch.labels.to(outputs.dtype) - mean) / deviation
        error = F.mse_loss(outputs[:, 0], labels, reduction="sum")
        return LossTerm(error, batch.tokens, nll=error.detach() * deviation**2)

    def nll(
        self, logits: Tensor, batch: Batch, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Tensor:
        """The loss of the problem; by default not smoothed or weighted."""
        labels = batch.labels
        if self.problem == REGRESSION:
            return F.mse_loss(logits[:, 0], labels.to(logits.dtype), reduction="sum")
        if self.problem == MULTI:
            known = labels[:, : self.classes].to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, known, reduction="sum")
        known = labels.masked_fill(labels >= self.classes, UNKNOWN)
        if weights is not None:
            weights = weights.to(logits)
        return F.cross_entropy(logits, known, weights, reduction="sum", label_smoothing=smoothing)

    def measure(self, model: Transformer, batch: Batch) -> dict[str, Any]:
        sums = super().measure(model, batch)
        path: Any = getattr(model.heads["sequence"], "path", None)
        given = None if path is None else path.given(batch.inputs)
        if given is not None:
            sums[PATH_LOGITS] = [path(given).cpu().numpy()]
        return sums

    def predictions(self, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Labels, predictions and their probabilities, and the number of labels that the model
        has.
        """
        labels = batch.labels
        outputs = choose_labels(logits, self.config)
        count = len(labels)
        if self.problem == SINGLE:
            count = int((labels < self.classes).sum())
        values = {
            "labels": labels,
            "outputs": outputs,
            "confidences": confidences(logits, self.config),
            "logits": logits,
        }
        return {"tokens": count, **{name: [value.cpu().numpy()] for name, value in values.items()}}

    def scores_of_sums(self, sums: Mapping[str, Any]) -> dict[str, float]:
        labels, outputs = (np.concatenate(sums[name]) for name in ("labels", "outputs"))
        score: ClassificationScore | MultiLabelScore | CorrelationScore
        if self.problem == SINGLE:
            score = ClassificationScore(len(self.numbers))
        elif self.problem == MULTI:
            score = MultiLabelScore(labels.shape[1])
            outputs = np.pad(outputs, ((0, 0), (0, labels.shape[1] - self.classes)))
        else:
            score = CorrelationScore()
        score.add(labels, outputs)
        values = score.values()
        if isinstance(score, ClassificationScore) and self.classes == 2:
            values["f1"] = binary_f1(score.table)  # also with other labels in the data
        return {name: values[name] for name in SCORES[self.problem] if name in values}

    def score_notes(self) -> Sequence[str]:
        if self.problem != SINGLE or self.classes != 2:
            return ()
        return (f"f1 is that of the label {str(self.config.labels[1])!r:.40}",)

    def constant_answer(self, examples: Any) -> ConstantAnswer | None:
        labels = examples.labels
        if self.problem == REGRESSION:
            return ConstantAnswer("always answering the mean", "loss", float(labels.var()))
        if self.problem == MULTI:
            return None
        counts = np.bincount(labels)
        most = int(counts.argmax())
        name = [*self.numbers][most]
        share = 100 * float(counts[most]) / len(labels)
        return ConstantAnswer(f"always answering {name!r:.20}", "accuracy", share)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        count = run.context.samples
        shift = None
        if run.context.chooses:
            shift = self.choose_shift(run.sums)
        if shift is not None:
            shifted = (torch.from_numpy(logits + shift) for logits in run.sums["logits"])
            outputs = [choose_labels(logits, self.config).numpy() for logits in shifted]
            run.sums["outputs"] = outputs
        outputs = run.by_row("outputs")[:count]
        confidences = [*map(float, run.by_row("confidences")[:count])]
        samples = [self._sample(run.rows, row, output) for row, output in enumerate(outputs)]
        return Evaluation(
            self.scores_of_sums(run.sums),
            samples,
            (),
            confidences,
            balance=self._balance(run.sums),
            shift=shift,
            shift_words=self._describe_shift(shift),
            parts=self.part_scores(run.sums),
        )

    def part_scores(self, sums: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """The scores of the linear path and of the Transformer alone; none without a path."""
        if PATH_LOGITS not in sums:
            return {}
        logits, of_path = (np.concatenate(sums[name]) for name in ("logits", PATH_LOGITS))
        scores = {}
        for name, of_part in zip(PARTS_OF_MODEL, (of_path, logits - of_path), strict=True):
            outputs = choose_labels(torch.from_numpy(of_part), self.config).numpy()
            scores[name] = self.scores_of_sums({**sums, "outputs": [outputs]})
        return scores

    # --- classes of different sizes ---------------------------------------------------------------

    def _balance(self, sums: Mapping[str, Any]) -> Balance | None:
        """The mean recall of the classes, or the macro F1 of several labels; None of a regression,
        and where the loss selects, which is lowest for no constant answer alone.
        """
        if self.problem == REGRESSION or self.settings.best_by == "loss":
            return None
        labels, outputs = (np.concatenate(sums[name]) for name in ("labels", "outputs"))
        answer = None
        if (outputs == outputs[0]).all():
            answer = self._describe_output(outputs[0])
        if self.problem == MULTI:
            return Balance(self.scores_of_sums(sums)["macro_f1"], answer)
        table = confusion_matrix(labels, outputs, len(self.numbers))
        return Balance(balanced_accuracy(table), answer)

    @property
    def _shifts(self) -> bool:
        """Whether the score that selects depends on thresholds, which the head can hold."""
        if self.settings.thresholds == "half" or not self.config.classifier_bias:
            return False
        if self.problem == MULTI:
            return self.settings.best_by in ("micro_f1", "macro_f1")
        return self.problem == SINGLE and self.classes == 2 and self.settings.best_by in MEASURES

    def choose_shift(self, sums: Mapping[str, Any]) -> NDArray[np.float32] | None:
        """(C,) what the biases gain, so that the score that selects is highest on these rows; None
        if they are best as they are, or if it does not depend on thresholds.
        """
        if not self._shifts:
            return None
        labels, logits = (np.concatenate(sums[name]) for name in ("labels", "logits"))
        shift = np.zeros(self.classes, dtype=np.float32)
        if self.problem == SINGLE:
            measure = MEASURES[self.settings.best_by]
            shift[1] = -best_threshold(logits[:, 1] - logits[:, 0], labels == 1, measure)
        else:
            known = labels[:, : self.classes] > 0
            shift[:] = -best_threshold(logits.ravel(), known.ravel(), f1_of)
        if self.settings.best_by == "macro_f1" and self.problem == MULTI:
            for number in np.flatnonzero(known.sum(0) >= FEWEST_LABELS):
                shift[number] = -best_threshold(logits[:, number], known[:, number], f1_of)
        return shift if shift.any() else None

    def _describe_shift(self, shift: NDArray[np.float32] | None) -> str:
        """The probabilities above which labels are predicted, in words."""
        if shift is None:
            return ""
        chances = [f"{1 / (1 + math.exp(value)):.2f}" for value in shift.tolist()]
        words = f"above {min(chances)} to {max(chances)}, by label"
        if self.problem == SINGLE:
            words = f"{self.config.labels[1]!r:.20} above {chances[1]}"
        elif len({*chances}) == 1:
            words = f"above {chances[0]}"
        return f"threshold of the probability for {self.settings.best_by}: {words}"

    def shifted_weights(self, weights: dict[str, Tensor], shift: Any) -> dict[str, Tensor]:
        bias = weights[_BIAS]
        return weights | {_BIAS: bias + torch.from_numpy(shift).to(bias)}

    def _sample(self, rows: Rows, row: int, output: Any) -> Sample:
        """A row with its labels and the predicted ones. output: the prediction for the row."""
        text, pair, label = (rows.columns[role][row] for role in ("text", "pair", "label"))
        source = str(text)
        if pair is not None:
            source += f" | {pair}"
        return Sample(source, self._describe_label(label), self._describe_output(output))

    def _describe_label(self, label: str | list[str]) -> str:
        """The labels of a row as text, several in the order of the classes."""
        if self.problem != MULTI:
            return str(label)
        names = split_label(label, self.settings.label_separator)
        return ", ".join(sorted(names, key=self.numbers.__getitem__))

    def _describe_output(self, output: Any) -> str:
        """A prediction as text: the name of a class, those of several, or a number."""
        if self.problem == REGRESSION:
            return f"{output:.3f}"
        names = self.config.labels
        if self.problem == SINGLE:
            return str(names[output])
        return ", ".join(name for name, applies in zip(names, output, strict=True) if applies)

    # --- saved weights ----------------------------------------------------------------------------

    def saved_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights, with the scale in the head, and the shares of its parts."""
        weights = weights | self._with_shares(weights, 0.5)
        outputs = self._find_outputs(weights)
        deviation = self.scale.deviation
        return weights | {
            name: weights[name] * deviation + shift for name, shift in outputs.items()
        }

    def trained_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = self._find_outputs(weights)
        deviation = self.scale.deviation
        weights = weights | {
            name: (weights[name] - shift) / deviation for name, shift in outputs.items()
        }
        return weights | self._with_shares(weights, 2.0)

    def _with_shares(self, weights: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
        """Of a Transformer that learns alone: the weights times ½, with which the outputs are
        the mean of both. They are those of the path as long as the Transformer has learned nothing.
        """
        names = [name for name in (_WEIGHT, _BIAS, _SCALE) if name in weights]
        is_mean = self.learns_alone and _SCALE in names and bool(weights[_WEIGHT].any())
        return {name: weights[name] * factor for name in names if is_mean}

    def _find_outputs(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """The names of the tensors of the last layer -> what the scale adds to them."""
        shifts = {_WEIGHT: 0.0, _BIAS: self.scale.mean, **dict.fromkeys(_PATH, 0.0)}
        return {name: shift for name, shift in shifts.items() if name in weights}

    def state(self) -> dict[str, Any]:
        if self.problem != REGRESSION:
            return {}
        return {"scale": self.scale._asdict()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the scale, which other rows may have changed; earlier runs have none."""
        self.scale = Scale(**saved.get("scale", {}))
