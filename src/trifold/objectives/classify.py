"""Classification of texts and of pairs of texts: one label, any number of labels, or a number
(regression).

rows -> example    a text or a pair with the tokenizer's special tokens, and its labels
example -> batch   packed texts
loss               - Σ log P(label | text), label-smoothed; of several labels, the sum over all; Σ
                   (number - output)², of standardized numbers
scores     accuracy, macro F1, F1 of two classes, Matthews; micro and macro F1; Pearson and Spearman
"""

from collections.abc import Mapping
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
from trifold.errors import DataError, SettingsError
from trifold.nn import Transformer
from trifold.nn.config import MULTI, REGRESSION, SINGLE
from trifold.objectives.batch import Batch, LossTerm
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.labelled import UNKNOWN, LabelledObjective, LabelledSettings, TextExamples
from trifold.objectives.labels import (
    ROLES,
    SCORES,
    SEVERAL,
    config_with_labels,
    label_sets,
    leave_out_unknown,
    read_numbers,
    write_whole_numbers,
)
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.predict.classify import choose_labels, confidences
from trifold.scores.classification import ClassificationScore, MultiLabelScore, binary_f1
from trifold.scores.correlation import CorrelationScore
from trifold.settings import nearest
from trifold.text.spans import Ids

# The last layer of the head.
_OUTPUTS = {"heads.sequence.out_proj.weight", "heads.sequence.out_proj.bias"}

if TYPE_CHECKING:
    BestBy: TypeAlias = str
else:
    BestBy = Literal[("auto", "loss", *dict.fromkeys(chain.from_iterable(SCORES.values())))]

# --- settings -> rows -----------------------------------------------------------------------------


class ClassifySettings(LabelledSettings):
    """Settings of classification; `data.columns` names the columns of text, pair (the second text)
    and label.
    """

    heads = ("sequence",)
    reads_whole = True

    kind: Literal["classify"] = "classify"
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="probability mass spread over all labels"
    )
    r_drop: float = Field(0.0, ge=0, description="weight of the divergence of two passes (R-Drop)")
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

    _reads_pairs: bool = PrivateAttr(False)  # set by `build`

    @field_validator("class_weights", mode="before")
    @classmethod
    def _name_labels(cls, weights: Any) -> Any:
        """The weights with text as keys; YAML reads the label 1 as a number."""
        return {str(k): v for k, v in weights.items()} if isinstance(weights, Mapping) else weights

    def usage(self, folder: Path) -> str:
        return super().usage(folder) + ' --pair "another text"' * self._reads_pairs

    def build(self, context: BuildContext) -> TaskBundle:
        is_multi = context.model.problem_type == MULTI
        roles = ROLES | ({"label": SEVERAL} if is_multi else {})

        def read(source: Any, data: DataSettings, split: str) -> Rows:
            rows = read_records(source, data, roles, split)
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
        config = context.config_for(tokenizer)
        config = config_with_labels(context, config, train, valid, self.label_separator)
        objective = Classify(
            self, tokenizer, config, context.text_width, context.report, pairs=bool(pairs)
        )
        objective.prepare(train)
        return objective.bundle(context, train, valid)


# --- examples, batches ----------------------------------------------------------------------------


class Scale(NamedTuple):
    """Mean and deviation of the numbers of a regression in the training rows."""

    mean: float = 0.0
    deviation: float = 1.0


class Classify(LabelledObjective):
    """Classification. Labels (N,) are classes or numbers, or (N, C) 0 and 1. Classes beyond those
    of the model are labels not seen in training; they count as wrong.

    pairs: whether rows have a second text. weights (C,): factors of the loss by class. scale: the
    model in training predicts (number - mean) / deviation; the saved one has both in its head, and
    predicts the number.
    """

    token_name = "texts"
    weights: Tensor | None = None
    scale = Scale()

    def __init__(self, settings: ClassifySettings, *parts: Any, pairs: bool = False) -> None:
        super().__init__(settings, *parts)
        config = self.config
        self.pairs = pairs
        self.problem = config.problem_type or SINGLE
        self.classes = config.n_labels
        scores = [name for name in SCORES[self.problem] if name != "f1" or self.classes == 2]
        best_by = scores[0] if settings.best_by == "auto" else settings.best_by
        if best_by not in ("loss", *scores):
            raise SettingsError(
                f"task.best_by: {best_by} is no score of {self.problem} with {self.classes} "
                "labels; choose loss, "
                f"{', '.join(scores)}"
            )
        for key in ("label_smoothing", "class_weights", "r_drop"):
            if self.problem != SINGLE and getattr(settings, key):
                raise SettingsError(
                    f"task.{key}: has no effect with model.problem_type={self.problem}; remove it"
                )
        self.settings = settings.model_copy(update={"best_by": best_by})

    @property
    def loss_unit(self) -> str:
        return "mean squared error" if self.problem == REGRESSION else super().loss_unit

    def examples(self, rows: Rows, draw: int | None = None) -> TextExamples:
        """Encode texts and number labels.

        Raises DataError for a second text that is missing or not expected, SettingsError for a
        missing </s>.
        """
        texts = rows.columns["text"]
        pairs = rows.columns["pair"]
        for pair, line in zip(pairs, rows.lines, strict=True):
            if (pair is None) == self.pairs:
                raise DataError(
                    f"{rows.report.name}:{line}: {'no' if self.pairs else 'a'} second text, "
                    "unlike the training data; "
                    "use the same columns, or set data.columns.pair"
                )
        encoded = self.encode(rows, texts, pairs if self.pairs else None)
        end = self.config.eos_id
        if self.config.classifier_input == "eos" and any(end not in row.ids for row in encoded):
            raise SettingsError(
                "model.classifier_input: eos, but a text has no </s>, because its tokenizer "
                "appends none; "
                "set model.classifier_input=first or last"
            )
        return TextExamples(*self.tokens_and_types(encoded), self._number_labels(rows))

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

    def prepare(self, rows: Rows) -> None:
        """Derive the factors of the loss and the scale of the numbers from the training rows.

        A head without bias cannot add the mean, so its numbers are only divided, by their root mean
        square.
        """
        self.weights = self.class_weights(rows)
        if self.problem == REGRESSION:
            numbers = read_numbers(rows).astype(np.float64)
            mean = float(numbers.mean()) if self.config.classifier_bias else 0.0
            deviation = float(np.sqrt(((numbers - mean) ** 2).mean()))
            self.scale = Scale(mean, deviation) if numbers.min() < numbers.max() else Scale()

    def class_weights(self, rows: Rows) -> Tensor | None:
        """(C,) the factors of the settings, or of the training rows. Raises SettingsError for an
        unknown label.
        """
        given = self.settings.class_weights
        names = self.config.labels
        if given == "balanced":
            counts = np.bincount(self._number_labels(rows), minlength=self.classes)[: self.classes]
            return torch.from_numpy(len(rows) / (self.classes * np.maximum(counts, 1))).float()
        if given is not None and (unknown := sorted({*given}.difference(names))):
            raise SettingsError(
                f"task.class_weights.{unknown[0]}: no such label{nearest(unknown[0], [*names])}"
            )
        return None if given is None else torch.tensor([given.get(name, 1.0) for name in names])

    def batch(
        self, examples: TextExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> Batch:
        labels = torch.from_numpy(examples.labels[rows])
        return Batch(self.pack(examples, rows, width), labels, len(rows))

    # --- loss, scores -----------------------------------------------------------------------------

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        if self.problem == REGRESSION:
            return {"tokens": self._regression_loss(self.logits(model, batch), batch)}
        logits = self.logits(model, batch)
        smoothing = self.settings.label_smoothing
        loss = self.nll(logits, batch, smoothing, self.weights)
        nll = self.nll(logits.detach(), batch)
        terms = {}
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
        error = F.mse_loss(outputs[:, 0], (batch.labels - mean) / deviation, reduction="sum")
        return LossTerm(error, batch.tokens, nll=error.detach() * deviation**2)

    def counts(self, batch: Batch) -> dict[str, int]:
        return super().counts(batch) | ({"r_drop": batch.tokens} if self.settings.r_drop else {})

    def nll(
        self, logits: Tensor, batch: Batch, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Tensor:
        """The loss of the problem; by default not smoothed or weighted."""
        labels = batch.labels
        if self.problem == REGRESSION:
            return F.mse_loss(logits[:, 0], labels, reduction="sum")
        if self.problem == MULTI:
            return F.binary_cross_entropy_with_logits(
                logits, labels[:, : self.classes], reduction="sum"
            )
        known = labels.masked_fill(labels >= self.classes, UNKNOWN)
        weights = None if weights is None else weights.to(logits)
        return F.cross_entropy(logits, known, weights, reduction="sum", label_smoothing=smoothing)

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, C)."""
        return model.head_outputs(batch.inputs, heads=["sequence"])["sequence"]

    def predictions(self, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Labels, predictions and their probabilities, and the number of labels that the model
        has.
        """
        labels = batch.labels
        outputs = choose_labels(logits, self.config)
        count = int((labels < self.classes).sum()) if self.problem == SINGLE else len(labels)
        values = {
            "labels": labels,
            "outputs": outputs,
            "confidences": confidences(logits, self.config),
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

    def saved_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights, with the scale in the head."""
        mean, deviation = self.scale
        return weights | {
            name: weights[name] * deviation + (mean if name.endswith("bias") else 0.0)
            for name in _OUTPUTS & weights.keys()
        }

    def trained_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        mean, deviation = self.scale
        return weights | {
            name: (weights[name] - (mean if name.endswith("bias") else 0.0)) / deviation
            for name in _OUTPUTS & weights.keys()
        }

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale._asdict()} if self.problem == REGRESSION else {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the scale, which other rows may have changed; earlier runs have none."""
        self.scale = Scale(**saved.get("scale", {}))

    def compute_scores(self, run: EvalRun) -> Evaluation:
        outputs, sure = (
            run.by_row(name)[: run.context.samples] for name in ("outputs", "confidences")
        )
        samples = [self._sample(run.rows, *each) for each in enumerate(outputs)]
        return Evaluation(self.scores_of_sums(run.sums), samples, (), [*map(float, sure)])

    def _sample(self, rows: Rows, row: int, output: Any) -> Sample:
        text, pair, label = (rows.columns[role][row] for role in ("text", "pair", "label"))
        if self.problem == MULTI:
            output = [
                name for name, applies in zip(self.config.labels, output, strict=True) if applies
            ]
            label = label if isinstance(label, list) else label.split(self.settings.label_separator)
            label = sorted(filter(None, map(str.strip, label)), key=lambda name: self.numbers[name])
        else:
            output = self.config.labels[output] if self.problem == SINGLE else f"{output:.3f}"
        source, given, ours = (
            ", ".join(x) if isinstance(x, list) else str(x) for x in (text, label, output)
        )
        return Sample(source if pair is None else f"{source} | {pair}", given, ours)
