"""Extractive question answering: the answer is a span of the context (Devlin et al. 2019, section
4.2).

rows -> examples   the question with each window of its context, and the first and last token of the
                   answer
example -> batch   packed windows
loss               - Σ ½ (log P(start) + log P(end)) over the windows; the softmax is over the
                   context and the class token, which both point to if the window does not contain
                   the answer
predictions        the best span of all windows (`predict.answer`)
scores             exact match and F1 of words; with unanswerable questions also those of each group
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trifold.data import Role, Rows, read_records
from trifold.data.roles import check_text
from trifold.data.squad import check_answers
from trifold.errors import DataError, SettingsError, UsageError
from trifold.nn import Transformer
from trifold.nn.packing import Packing
from trifold.objectives.batch import Batch
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.labelled import UNKNOWN, LabelledObjective, LabelledSettings, TextExamples
from trifold.objectives.objective import ENCODER, BuildContext, TaskBundle
from trifold.predict.answer import Options, choose_answers, is_visible, read_windows, window_sizes
from trifold.ragged import Ragged
from trifold.scores.bootstrap import Resampled, mean_scorer
from trifold.scores.squad import SquadScore, score_answer
from trifold.text import Encoded
from trifold.text.spans import Ids

# --- columns --------------------------------------------------------------------------------------


def _read_answers(value: Any, _place: str) -> Any:
    """Answers: a list or an object of lists, also as JSON in the cell of a table, or one text. An
    empty text means no answer.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("", "[", "{"):
        return value
    if not value.strip():
        return []
    for parse in (json.loads, ast.literal_eval):  # as JSON and as Python write lists
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(value)
    return value


def _read_start(value: Any, _place: str) -> Any:
    """The number in a cell of a table; pandas writes 17.0 in a column with empty cells."""
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
            if number.is_integer():
                return int(number)
    return value


ROLES = {
    "id": Role(
        ("id", "qid", "question_id"),
        lambda value, place: str(value),
        required=False,
        identifies=False,
    ),
    "question": Role(("question", "query"), check_text),
    "context": Role(("context", "passage", "paragraph", "document", "text"), check_text),
    "answers": Role(("answers", "answer", "answer_text"), _read_answers, identifies=False),
    # Of an answer that is a text.
    "start": Role(
        ("answer_start",), _read_start, required=False, may_be_empty=True, identifies=False
    ),
}


# --- settings -> rows -----------------------------------------------------------------------------


class AnswerSettings(LabelledSettings):
    """Settings of question answering; `data.columns` names the columns of question, context,
    answers and id.
    """

    pipeline_tag = "question-answering"
    command = 'predict {folder} "a question" --context "a text that contains the answer"'
    shapes = ("encoder",)
    heads = ("span",)
    defaults = ENCODER
    unused_keys = (*LabelledSettings.unused_keys, "data.source", "data.target")

    kind: Literal["answer"] = "answer"
    max_length: int = Field(
        384,
        ge=8,
        description="tokens of the question and a window of its context, at most the model's "
        "positions",
    )
    stride: int | None = Field(
        None, ge=0, description="tokens that windows share; default: 128, at most half a window"
    )
    max_answer_length: int = Field(15, ge=1, description="most tokens of a predicted answer")
    impossible: bool | None = Field(
        None,
        description="predictions: whether a question may have no answer; default: whether one "
        "of the evaluated questions has none",
    )
    best_by: Literal["loss", "exact_match", "f1"] = "f1"

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(_read_rows)
        texts = [
            text for role in ("context", "question") for text in dict.fromkeys(train.columns[role])
        ]
        tokenizer = context.load_or_train_tokenizer(lambda: texts)
        if not tokenizer.has_offsets or tokenizer.rows([""], [""])[0].ids[:1] != [tokenizer.cls_id]:
            raise SettingsError(
                "tokenizer: answers require the positions of tokens, and a class token in front "
                "of the text; set "
                "tokenizer.kind=bpe and tokenizer.special=[cls, sep, mask], or another "
                "tokenizer.file"
            )
        objective = ExtractAnswers(
            self, tokenizer, context.config_for(tokenizer), context.width, context.report
        )
        return TaskBundle(objective, objective.config, train, valid)


def _read_rows(source: Any, settings: Any, split: str) -> Rows:
    """The questions; the answers as {"text", "start"}, none if the question has no answer.

    Raises DataError, which names file and id, for an answer that is not in its context.
    """
    rows = read_records(source, settings, ROLES, split)
    columns = rows.columns
    starts = rows.columns.pop("start")
    for row, context in enumerate(columns["context"]):
        answers = _listed(columns["answers"][row], starts[row], rows, row)
        columns["answers"][row] = check_answers(answers, context, place_of(rows, row))
    if missing := columns["answers"].count([]):
        rows.report.notes.append(f"{missing:,} without an answer")
    return rows


def _listed(answers: Any, start: Any, rows: Rows, row: int) -> Any:
    """The answers, of which a text that has a start is the only one."""
    if isinstance(answers, str) and start is not None:
        return [{"text": answers, "answer_start": start}]
    if isinstance(answers, list | Mapping):
        return answers
    column = rows.report.columns.get("answers", "answers")
    raise DataError(
        f"{rows.report.name}:{rows.lines[row]}: {column!r} is {answers!r:.40}, expected a list of "
        "answers, each with text and answer_start (no answer: []), or a text beside a column "
        "answer_start"
    )


def place_of(rows: Rows, row: int) -> str:
    """The file and the id of a question, or its line if it has no id."""
    name = rows.columns["id"][row]
    if name is None:
        return f"{rows.report.name}:{rows.lines[row]}"
    return f"{rows.report.name}, question {name!r:.80}"


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowExamples(TextExamples):
    """Windows. visible: 1 at tokens in the softmax.

    labels (N, 2): first and last token, 0 for none, UNKNOWN if the answer is in no window as a
    whole.
    """

    visible: Ragged


@dataclass(frozen=True)
class WindowBatch(Batch):
    """Packed windows. visible (B, T): tokens in the softmax; labels (B, 2)."""

    visible: Tensor


def label_windows(parts: Sequence[Encoded], start: int, end: int) -> list[tuple[int, int]]:
    """The first and last token of the characters [start, end) of the context, in each window.

    (0, 0), the class token, for a window that does not contain all of them; UNKNOWN if no window
    does. Tokens that are partly in the span belong to it.
    """
    answers = [_tokens_within(part, start, end) for part in parts]
    extents = []  # of each window: the characters of the tokens in the answer
    for part, tokens in zip(parts, answers, strict=True):
        if tokens:
            extents.append((part.offsets[tokens[0]][0], part.offsets[tokens[-1]][1]))
        else:  # does not widen the whole
            extents.append((end, start))
    whole = (min(extents)[0], max(last for _, last in extents))  # of the answer in all windows
    if whole not in extents or not any(answers):
        return [(UNKNOWN, UNKNOWN)] * len(parts)
    labels = [(0, 0)] * len(parts)
    for window, (tokens, extent) in enumerate(zip(answers, extents, strict=True)):
        if extent == whole:
            labels[window] = (tokens[0], tokens[-1])
    return labels


def _tokens_within(part: Encoded, start: int, end: int) -> list[int]:
    """The numbers of the tokens of a window that have a part of the characters [start, end) of the
    context.
    """
    return [
        token
        for token, (first, after) in enumerate(part.offsets)
        if part.texts[token] == 1 and max(first, start) < min(after, end)
    ]


class ExtractAnswers(LabelledObjective):
    """Extractive question answering; `width` limits the windows."""

    row_name = "windows"
    token_name = "windows"

    def windows(self, rows: Rows) -> Iterator[list[Encoded]]:
        """The windows of each question. Raises DataError for a question that leaves no room for its
        context.
        """
        columns = rows.columns
        positions = self.width or self.config.max_positions
        sizes = window_sizes(self.settings.max_length, self.settings.stride, positions)
        for row, (question, context) in enumerate(
            zip(columns["question"], columns["context"], strict=True)
        ):
            try:
                yield read_windows(self.tokenizer, question, context, *sizes, place_of(rows, row))
            except UsageError as error:
                raise DataError(
                    f"{error} (task.stride, task.max_length, model.max_positions)"
                ) from None

    def examples(self, rows: Rows, draw: int | None = None) -> WindowExamples:
        """Read the windows of all questions and label them. Reports answers that no window contains
        as a whole.
        """
        encoded = list[Encoded]()
        labels = list[tuple[int, int]]()
        lost = 0
        for row, parts in enumerate(self.windows(rows)):
            window_labels = [(0, 0)] * len(parts)
            if answers := rows.columns["answers"][row]:
                start = answers[0]["start"]
                window_labels = label_windows(parts, start, start + len(answers[0]["text"]))
            labels += window_labels
            lost += window_labels[0][0] == UNKNOWN
            encoded += parts
        if lost:
            self.report(
                f"{rows.report.name}: {lost:,} answers match no tokens of a single window: not "
                "in the loss"
            )
        visible = Ragged.of([is_visible(part, self.tokenizer.cls_id) for part in encoded])
        return WindowExamples(*self.tokens_and_types(encoded), np.array(labels), visible)

    def batch(
        self, examples: WindowExamples, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> WindowBatch:
        inputs = self.pack(examples, rows, width)
        packing: Any = inputs.packing
        visible = examples.visible.padded(rows, packing.shape[1], 0).bool()
        labels = np.where(examples.labels[rows, 1:] < packing.shape[1], examples.labels[rows], 0)
        return WindowBatch(
            inputs, torch.from_numpy(labels), int((labels[:, 0] != UNKNOWN).sum()), visible
        )

    # --- loss, predictions, scores ----------------------------------------------------------------

    def logits(self, model: Transformer, batch: WindowBatch) -> Tensor:
        """(B, T, 2) of start and end; -inf outside of the softmax."""
        assert isinstance(batch.inputs.packing, Packing)
        states = model(batch.inputs)[0][None]
        logits: Tensor = batch.inputs.packing.grid(model.heads["span"](states, batch.inputs, None))
        return logits.masked_fill(~batch.visible[:, :, None], float("-inf"))

    def nll(self, logits: Tensor, batch: WindowBatch) -> Tensor:
        return super().nll(logits, batch) / 2

    def predictions(self, logits: Tensor, batch: WindowBatch) -> dict[str, Any]:
        return {"logits": [logits.cpu()]}

    def compute_scores(self, run: EvalRun) -> Evaluation:
        columns = run.rows.columns
        settings = self.settings
        impossible = settings.impossible
        if impossible is None:
            impossible = not all(columns["answers"])
        options = Options(1, settings.max_answer_length, impossible)
        logits = iter(run.by_row("logits"))
        predictions = list[str]()
        confidences = list[float]()
        for parts, context in zip(self.windows(run.rows), columns["context"], strict=True):
            answers = choose_answers(parts, logits, context, self.tokenizer.cls_id, options)
            text = ""
            confidence = 0.0
            if answers:
                text = answers[0].text
                confidence = answers[0].score
            predictions.append(text)
            confidences.append(confidence)
        references = [[answer["text"] for answer in answers] for answers in columns["answers"]]
        score = SquadScore()
        score.add(references, predictions)
        pairs = zip(references, predictions, strict=True)
        exact, f1 = zip(*(score_answer(*pair) for pair in pairs), strict=True)
        means = {"exact_match": [100 * x for x in exact], "f1": [100 * x for x in f1]}
        resampled = Resampled(mean_scorer(means), len(predictions), "questions")
        expected = map(_expected_answer, references, predictions)
        samples = [*map(Sample, columns["question"], expected, predictions)][: run.context.samples]
        confidences = confidences[: len(samples)]
        return Evaluation(score.values(), samples, [score.signature], confidences, resampled)


def _expected_answer(references: Sequence[str], prediction: str) -> str:
    """The answer to show beside a prediction: one that it matches exactly, or the first one; empty
    if there is none.
    """
    is_exact, _ = score_answer(references, prediction)
    if is_exact:
        return prediction
    return references[0] if references else ""
