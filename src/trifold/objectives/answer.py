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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trifold.data import Rows
from trifold.errors import DataError, SettingsError, UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head, Shape
from trifold.nn.packing import Packing
from trifold.objectives.batch import Batch
from trifold.objectives.evaluation import EvalRun, Evaluation
from trifold.objectives.labelled import UNKNOWN, LabelledObjective, LabelledSettings, TextExamples
from trifold.objectives.objective import ENCODER, BuildContext, TaskBundle
from trifold.objectives.prompted import (
    PROMPT,
    PromptSettings,
    bundle_prompted,
    load_tokenizer,
)
from trifold.objectives.questions import (
    ROLES,  # noqa: F401 (of the rows, as in the file of every task)
    place_of,
    read_spans,
    read_texts,
    score_answers,
)
from trifold.objectives.write_answers import WriteAnswers
from trifold.predict.answer import (
    LONGEST_ANSWER,
    MAX_ANSWER_LENGTH,
    SpanOptions,
    choose_answers,
    is_visible,
    read_windows,
    window_sizes,
)
from trifold.ragged import Ragged
from trifold.text import Encoded
from trifold.text.encoded import matches_of
from trifold.text.prompts import QUESTION
from trifold.text.spans import Ids
from trifold.text.tokenizer import NO_LIMITS

# --- settings -> rows -----------------------------------------------------------------------------


LONG_ANSWER = 99.0  # percentile of the training answers that a prediction may be as long as
# Settings of answers that are spans.
OF_SPANS = ("max_length", "stride", "max_answer_length", "impossible")


class AnswerSettings(LabelledSettings, PromptSettings):
    """Settings of question answering; `data.columns` names the columns of question, context,
    answers and id. An encoder finds the answer in the context, a decoder writes it.
    """

    pipeline_tag = "question-answering"
    command = 'predict {folder} "a question" --context "a text that contains the answer"'
    shapes = ("encoder", "decoder")
    heads = ("span",)
    defaults = ENCODER
    default_prompt = "{context}\nQuestion: {question}\nAnswer:"
    prompt_names = QUESTION
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
    max_answer_length: int = Field(
        MAX_ANSWER_LENGTH,
        ge=1,
        description="most tokens of a predicted answer; chosen for the training answers by a "
        "recipe that sizes itself",
    )
    impossible: bool | None = Field(
        None,
        description="predictions: whether a question may have no answer; default: whether one "
        "of the evaluated questions has none",
    )
    best_by: Literal["loss", "exact_match", "f1"] = "f1"
    prompt: str | None = PROMPT

    @classmethod
    def heads_for(cls, shape: Shape) -> tuple[Head, ...]:
        return ("lm",) if shape == "decoder" else cls.heads

    @classmethod
    def defaults_for(cls, shape: Shape | None) -> Mapping[str, Mapping[str, Any]]:
        defaults = super().defaults_for(shape)
        if shape != "decoder":
            return defaults
        return {"model": defaults["model"], "batch": {"on_overflow": "truncate"}}

    def model_problem(self, config: ModelConfig) -> str | None:
        for key in OF_SPANS:
            if config.shape == "decoder" and getattr(self, key) != _default_of(key):
                return (
                    f"task.{key}: is for answers that are spans, and a decoder writes its answers; "
                    "remove it"
                )
        return super().model_problem(config)

    def _build_prompted(self, context: BuildContext) -> TaskBundle:
        """The task of a decoder."""
        train, valid = context.read(read_texts)
        names = self.chosen_prompt.names
        columns = (train.columns[name] for name in names)
        tokenizer, config = load_tokenizer(
            context,
            self.chosen_prompt,
            lambda: [dict(zip(names, texts, strict=True)) for texts in zip(*columns, strict=True)],
            train.targets,
        )
        objective = WriteAnswers(self, tokenizer, context.text_width)
        return bundle_prompted(context, objective, config, train, valid)

    def build(self, context: BuildContext) -> TaskBundle:
        if context.model.shape == "decoder":
            return self._build_prompted(context)
        train, valid = context.read(read_spans)
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


def _default_of(key: str) -> Any:
    return AnswerSettings.model_fields[key].get_default()


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
    compares = True

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
                yield read_windows(
                    self.tokenizer,
                    question,
                    context,
                    *sizes,
                    place_of(rows, row),
                    compares=self.config.word_matches,
                )
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
        return WindowExamples(
            *self.tokens_and_types(encoded), np.array(labels), visible, matches=matches_of(encoded)
        )

    def counted_settings(self, examples: WindowExamples) -> dict[str, Any]:
        """The most tokens of nearly all training answers, at least 15."""
        first, last = examples.labels[examples.labels[:, 0] > 0].T
        if not len(first):
            return {}
        longest = int(np.percentile(last - first + 1, LONG_ANSWER, method="higher"))
        return {"max_answer_length": max(MAX_ANSWER_LENGTH, longest)}

    def save(self, folder: Path) -> None:
        """Write the tokenizer, with the most tokens of an answer."""
        longest = self.settings.max_answer_length
        if longest != MAX_ANSWER_LENGTH:
            settings = self.tokenizer.settings or NO_LIMITS
            self.tokenizer.settings = {**settings, LONGEST_ANSWER: longest}
        super().save(folder)

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
        options = SpanOptions(1, settings.max_answer_length, impossible)
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
        evaluation = score_answers(run.rows, predictions, run.context.samples)
        return evaluation._replace(confidences=confidences[: len(evaluation.samples)])
