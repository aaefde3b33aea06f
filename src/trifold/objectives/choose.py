"""Multiple choice: which of several texts answers or continues a text (Zellers et al. 2018, Lai et
al. 2017).

rows -> example    a pair of the text and each choice, after the question if there is one
example -> batch   packed pairs
loss               - Σ log P(choice | text), a softmax over the logits of the pairs of a row
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trifold.data import Role, Rows, read_records
from trifold.data.roles import MISSING, check_text, is_missing
from trifold.errors import DataError, plural
from trifold.nn import Transformer, ops
from trifold.objectives.batch import Batch, LossTerm
from trifold.objectives.evaluation import ConstantAnswer, EvalRun, Evaluation, Sample
from trifold.objectives.labelled import (
    LM_LOSS,
    LabelledObjective,
    TextExamples,
    TextLossSettings,
    report_bare_pairs,
)
from trifold.objectives.objective import BuildContext, TaskBundle
from trifold.predict.choose import after_question
from trifold.scores.bootstrap import Resampled, mean_scorer
from trifold.text.encoded import matches_of
from trifold.text.spans import Ids

# --- columns --------------------------------------------------------------------------------------


def read_choices(value: Any, place: str) -> tuple[list[str], list[str]]:
    """The texts and the names of choices: of a list of texts, or of an object with lists under
    "text" and "label".
    """
    texts: Any = value
    names: Any = []
    if isinstance(value, Mapping):
        texts = value.get("text")
        names = value.get("label", [])
    if not isinstance(texts, list) or not isinstance(names, list):
        raise DataError(
            f"{place} is not a list of choices; set data.columns.choices to the column of lists"
        )
    return [check_text(text, place) for text in texts], [*map(str, names)]


def read_choice_label(value: Any, _place: str) -> Any:
    """A label as it is; MISSING for none, for which public benchmarks write -1."""
    if is_missing(value) or value in (-1, "-1"):
        return MISSING
    return value


LETTERS = "ABCDEFGHIJ"
WORDS = ("choice", "ending", "option", "answer", "sol")
COLUMNS = {
    f"choice{n}": Role(
        (*(f"{word}{n}" for word in WORDS), f"answer{letter}"),
        check_text,
        required=False,
        may_be_empty=True,
        identifies=False,
    )
    for n, letter in enumerate("-abcdefghi")
}
TEXTS = (
    "context ctx article passage premise sent1 startphrase sentence1 sentence goal "
    "question_stem question text"
)
ROLES = {
    # The question and the choices do not change which text it is.
    "text": Role(TEXTS.split(), check_text),
    "question": Role(("question", "sent2"), check_text, required=False, identifies=False),
    "choices": Role(
        ("choices", "options", "endings"), read_choices, required=False, identifies=False
    ),
    "label": Role(
        ("label", "answer", "answerkey", "target"),
        read_choice_label,
        identifies=False,
    ),
    **COLUMNS,
}


# --- settings -> rows -----------------------------------------------------------------------------


class ChooseSettings(TextLossSettings):
    """Settings of multiple choice; `data.columns` names the columns of text, question, choices and
    label.
    """

    pipeline_tag = "multiple-choice"
    command = 'predict {folder} "your text" --choices one --choices another'
    shapes = ("encoder", "decoder")
    heads = ("choice",)
    reads_whole = True

    kind: Literal["choose"] = "choose"
    lm_loss: float = LM_LOSS
    best_by: Literal["accuracy", "loss"] = "accuracy"

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(
            lambda source, data, split: read_records(source, data, ROLES, split)
        )
        number_labels(context, train, valid)
        both = zip(train.columns["text"], _full_choices(train), strict=True)
        texts = (text for first, choices in both for text in (first, *choices))
        tokenizer = context.load_or_train_tokenizer(lambda: texts)
        report_bare_pairs(context, tokenizer)
        task = Choose(
            self, tokenizer, context.config_for(tokenizer), context.text_width, context.report
        )
        return task.bundle(context, train, valid)


def number_labels(context: BuildContext, *sources: Rows) -> None:
    """Make the choices of each row a list of texts, and its label a number from 0.

    Numbers in labels begin at 1 if the columns of choices do and no label is 0. A text that is the
    number of one choice and the text of another is read as the other labels are. Raises DataError
    for a label of no choice.
    """
    first = _first_number(context, sources)
    labelled = [
        LabelledChoices.of(rows, row, first) for rows in sources for row in range(len(rows))
    ]
    clear = {*chain.from_iterable(each.readings for each in labelled if len(each.readings) == 1)}
    for choices in labelled:
        rows = choices.rows
        row = choices.row
        numbers = choices.numbers(clear)
        if len(numbers) != 1 or len(choices.texts) < 2:
            problem = _problem(choices, first, is_double=bool(numbers))
            raise DataError(f"{rows.report.name}:{rows.lines[row]}: {problem}")
        rows.columns["choices"][row] = choices.texts
        rows.columns["label"][row] = numbers.pop()
    _report_equal_choices(context, sources)


def _report_equal_choices(context: BuildContext, sources: Sequence[Rows]) -> None:
    """Report how many rows have two equal choices, of which only one is right, or a blank one."""
    for rows in sources:
        choices = rows.columns["choices"]
        equal = [row for row, texts in enumerate(choices) if _are_equal(texts)]
        blank = [row for row, texts in enumerate(choices) if not all(map(str.strip, texts))]
        if blank:
            context.report(
                f"warning: {rows.report.name}: {plural(len(blank), 'row')} with a blank choice, "
                f"the first in line {rows.lines[blank[0]]}; correct or remove them"
            )
        if equal:
            context.report(
                f"warning: {rows.report.name}: {plural(len(equal), 'row')} with equal choices, "
                f"the first in line {rows.lines[equal[0]]}; correct or remove them"
            )


def _are_equal(texts: Sequence[str]) -> bool:
    """Whether two choices are equal without regard to space around them."""
    return len({*map(str.strip, texts)}) < len(texts)


def _first_number(context: BuildContext, sources: Sequence[Rows]) -> int:
    """The number that labels have for the first column of choices: 0 or 1. Reports the latter."""
    used = {name for name in COLUMNS for rows in sources if any(rows.columns[name])}
    labels = {str(label) for rows in sources for label in rows.columns["label"]}
    if "choice1" not in used or "choice0" in used or "0" in labels:
        return 0
    if any(map(str.isdecimal, labels)):
        context.report("labels: numbers from 1")
    return 1


class LabelledChoices(NamedTuple):
    """The choices of a row and its label. readings: the number, from 0, of the choice that the
    label means, by how it is read.
    """

    rows: Rows
    row: int
    texts: list[str]
    label: Any
    readings: dict[str, int]

    @classmethod
    def of(cls, rows: Rows, row: int, first: int) -> LabelledChoices:
        """first: the number of the first column of choices; a list of choices begins at 0."""
        values = {role: column[row] for role, column in rows.columns.items()}
        texts, names = _choices_and_names(values)
        if values["choices"] is not None:
            first = 0
        label = values["label"]
        return cls(rows, row, texts, label, _read_label(label, texts, names, first))

    def numbers(self, clear: Collection[str]) -> set[int]:
        """The numbers that the label may mean. clear: how labels with one reading are read; if all
        are read alike, so is this one.
        """
        if len(clear) != 1:
            return {*self.readings.values()}
        return {number for kind, number in self.readings.items() if kind in clear}


def _read_label(label: Any, texts: list[str], names: list[str], first: int) -> dict[str, int]:
    """The number, from 0, of the choice that a label means as a name, a number or a letter, and as
    a text.
    """
    text = str(label)
    if text in names:
        return {"number": names.index(text)}
    if text.isdecimal():
        number = int(text) - first
    else:
        number = LETTERS.find(text.strip() or "-")
    readings = {}
    if 0 <= number < len(texts):
        readings["number"] = number
    if label in texts:
        readings["text"] = texts.index(text)
    return readings


def _problem(choices: LabelledChoices, first: int, *, is_double: bool) -> str:
    """Why a row has no label, or too few choices. first: the number of the first choice."""
    count = len(choices.texts)
    if not count:
        return (
            "no choices; set data.columns.choices to a column of lists, or data.columns.choice1, …"
        )
    if count == 1:
        return "a single choice; a row needs two or more, so remove it"
    meant = "two" if is_double else "none"
    return (
        f"the label {choices.label!r:.60} is the text, the letter or the number (from {first}) of "
        f"{meant} of {count} choices; correct it (a letter or a JSON integer is clear), or set "
        "data.columns.choices and data.columns.label"
    )


def _choices_and_names(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The texts and the names of the choices in a row, given by role."""
    return values["choices"] or ([values[name] for name in COLUMNS if values[name]], [])


def choices_of(values: Mapping[str, Any]) -> list[str]:
    """The choices in a row, given by role, as they are written."""
    return _choices_and_names(values)[0]


def _full_choices(rows: Rows) -> list[list[str]]:
    """What the model reads of the choices of each row, which `number_labels` has changed."""
    both = zip(rows.columns["question"], rows.columns["choices"], strict=True)
    return [after_question(question, choices) for question, choices in both]


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ChoiceExamples(TextExamples):
    """Pairs; row r has those from starts[r] to starts[r + 1] (N + 1,). labels (N,): the numbers of
    the right ones.
    """

    starts: Ids

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens of the longest pair of each row."""
        return np.maximum.reduceat(self.texts.lengths, self.starts[:-1])[:, None]


@dataclass(frozen=True)
class ChoiceBatch(Batch):
    """Packed pairs, and labels (B,). counts: of the pairs of each row."""

    counts: list[int]


class Choose(LabelledObjective):
    """Multiple choice. Rows may have different numbers of choices."""

    token_name = "rows"
    compares = True

    def examples(self, rows: Rows, draw: int | None = None) -> ChoiceExamples:
        """Encode the pairs of the rows, which `number_labels` has changed."""
        choices = _full_choices(rows)
        texts = rows.columns["text"]
        repeated = [text for text, each in zip(texts, choices, strict=True) for _ in each]
        encoded = self.encode(rows, repeated, [*chain(*choices)])
        starts = np.cumsum([0, *map(len, choices)])
        return ChoiceExamples(
            *self.tokens_and_types(encoded),
            np.array(rows.columns["label"]),
            starts,
            matches=matches_of(encoded),
        )

    def batch(
        self, examples: ChoiceExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> ChoiceBatch:
        pairs = [np.arange(examples.starts[row], examples.starts[row + 1]) for row in rows]
        inputs = self.pack(examples, np.concatenate(pairs), width)
        return ChoiceBatch(
            inputs, torch.from_numpy(examples.labels[rows]), len(rows), [*map(len, pairs)]
        )

    # --- loss, scores -----------------------------------------------------------------------------

    def logits(self, model: Transformer, batch: ChoiceBatch) -> Tensor:
        """(B, C), C being the largest number of choices; -infinity beyond those of a row."""
        return self._of_rows(ops.head_output(model, batch.inputs, "choice"), batch)

    def _of_rows(self, outputs: Tensor, batch: ChoiceBatch) -> Tensor:
        """The logits (B, C) of the rows from those of all pairs, (N, 1)."""
        scores = outputs[:, 0].split(batch.counts)
        return pad_sequence(scores, batch_first=True, padding_value=float("-inf"))

    def counts(self, batch: ChoiceBatch) -> dict[str, int]:
        return super().counts(batch) | self.lm_counts(batch)

    def loss(self, model: Transformer, batch: ChoiceBatch) -> dict[str, LossTerm]:
        outputs, terms = self.output_and_lm(model, batch, "choice")
        nll = self.nll(self._of_rows(outputs, batch), batch)
        return terms | {"tokens": LossTerm(nll, batch.tokens)}

    def predictions(self, logits: Tensor, batch: ChoiceBatch) -> dict[str, Any]:
        confidences, outputs = logits.softmax(-1).max(-1)
        return {
            "correct": int((outputs == batch.labels).sum()),
            "outputs": [outputs.cpu().numpy()],
            "confidences": [confidences.cpu().numpy()],
        }

    def constant_answer(self, examples: ChoiceExamples) -> ConstantAnswer:
        counts = np.bincount(examples.labels)
        share = 100 * float(counts.max()) / len(examples.labels)
        return ConstantAnswer(
            f"always choosing number {int(counts.argmax()) + 1}", "accuracy", share
        )

    def compute_scores(self, run: EvalRun) -> Evaluation:
        count = run.context.samples
        outputs = run.by_row("outputs")[:count]
        confidences = [*map(float, run.by_row("confidences")[:count])]
        columns = (run.rows.columns[name] for name in ("text", "question", "choices", "label"))
        rows = zip(*columns, outputs, strict=False)
        samples = [
            Sample(" ".join(filter(None, (text, question))), choices[label], choices[output])
            for text, question, choices, label, output in rows
        ]
        correct = [
            100.0 * (output == label)
            for output, label in zip(run.by_row("outputs"), run.rows.columns["label"], strict=True)
        ]
        resampled = Resampled(mean_scorer({"accuracy": correct}), len(correct), self.row_name)
        scores = self.scores_of_sums(run.sums)
        return Evaluation(scores, samples, (), confidences, resampled)
