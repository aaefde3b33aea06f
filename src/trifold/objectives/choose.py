"""Multiple choice: which of several texts answers or continues a text (Zellers et al. 2018, Lai et al. 2017).

rows -> example    a pair of the text and each choice, after the question if there is one
example -> batch   packed pairs
loss               - Σ log P(choice | text), a softmax over the logits of the pairs of a row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trifold.data import Records, Role, read_records
from trifold.data.tables import check_text
from trifold.errors import DataError
from trifold.nn import Transformer
from trifold.objectives.labelled import (
    LabelledObjective,
    LabelledSettings,
    TextExamples,
    text_width,
)
from trifold.objectives.objective import BuildContext, InputBatch, TaskBundle
from trifold.text.spans import Ids


def read_choices(value: Any, place: str) -> list[str]:
    """A list of texts, or the one under the key "text"."""
    value = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(value, list):
        raise DataError(f"{place} is not a list of choices; set data.columns.choices to the column of lists")
    return [check_text(choice, place) for choice in value]


COLUMNS = {
    f"choice{n}": Role(
        (f"choice{n}", f"ending{n}", f"option{n}"), check_text, required=False, may_be_empty=True
    )
    for n in range(10)
}
TEXTS = ("context", "article", "passage", "sent1", "startphrase", "sentence1", "question", "text")
ROLES = {
    "text": Role(TEXTS, check_text),
    "question": Role(("question", "sent2"), check_text, required=False),
    "choices": Role(("choices", "options", "endings"), read_choices, required=False),
    "label": Role(("label", "answer", "answerkey", "target"), lambda value, place: str(value)),
    **COLUMNS,
}


class ChooseSettings(LabelledSettings):
    """Settings of multiple choice; `data.columns` names the columns of text, question, choices and label."""

    command = 'predict {folder} "your text" --choices one --choices another'
    shapes = ("encoder",)
    heads = ("choice",)
    reads_whole = True

    kind: Literal["choose"] = "choose"
    best_by: Literal["accuracy", "loss"] = "accuracy"

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(lambda source, data, split: read_records(source, data, ROLES, split))
        texts = [text for first, choices, _ in _rows(train) for text in (first, *choices)]
        tokenizer = context.load_or_train_tokenizer(lambda: texts)
        objective = Choose(
            self, tokenizer, context.config_for(tokenizer), text_width(context), context.report
        )
        return self.bundle(objective, context, train, valid)


def _rows(rows: Records) -> list[tuple[str, list[str], int]]:
    """The text, the choices, and the number of the right one."""
    found = []
    for row, line in enumerate(rows.lines):
        values = {role: column[row] for role, column in rows.columns.items()}
        choices, label = (
            values["choices"] or [values[name] for name in COLUMNS if values[name]],
            values["label"],
        )
        if label in choices:
            number = choices.index(label)
        else:
            number = int(label) if label.isdecimal() else "ABCDEFGHIJ".find(label.strip() or "-")
        if not 0 <= number < len(choices):
            raise DataError(
                f"{rows.report.name}:{line}: the label {label!r:.60} is not the text, the letter or the number (from "
                f"0) of one of {len(choices)} choices; correct it, or set data.columns.choices and data.columns.label"
            )
        question = f"{values['question']} " if values["question"] else ""
        found.append((values["text"], [question + choice for choice in choices], number))
    return found


@dataclass(frozen=True)
class Examples(TextExamples):
    """Pairs; row r has those from starts[r] to starts[r + 1] (N + 1,). labels (N,): the numbers of the right ones."""

    starts: Ids

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens of the longest pair of each row."""
        return np.maximum.reduceat(self.texts.lengths, self.starts[:-1])[:, None]


@dataclass(frozen=True)
class Batch(InputBatch):
    """Packed pairs, and labels (B,). counts: of the pairs of each row."""

    counts: list[int]


class Choose(LabelledObjective):
    """Multiple choice. Rows may have different numbers of choices."""

    token_name = "rows"

    def examples(self, rows: Records, draw: int | None = None) -> Examples:
        """Encode the pairs of the rows. Raises DataError for a label that is none of the choices."""
        found = _rows(rows)
        pairs = [(text, choice) for text, choices, _ in found for choice in choices]
        encoded = self.encode(rows, *map(list, zip(*pairs, strict=True)))
        starts = np.cumsum([0, *(len(choices) for _, choices, _ in found)])
        return Examples(*self.tokens_and_types(encoded), np.array([number for *_, number in found]), starts)

    def batch(self, examples: Examples, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        """Pack the pairs of the given rows, each truncated to `width` tokens if given. Not random."""
        pairs = [np.arange(examples.starts[row], examples.starts[row + 1]) for row in rows]
        inputs = self.pack(examples, np.concatenate(pairs), width)
        return Batch(inputs, torch.from_numpy(examples.labels[rows]), len(rows), [*map(len, pairs)])

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, C), C being the largest number of choices; -infinity beyond those of a row."""
        scores = model.head_outputs(batch.inputs, heads=["choice"])["choice"][:, 0].split(batch.counts)
        return pad_sequence(scores, batch_first=True, padding_value=float("-inf"))

    def predictions(self, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """The number of correct choices."""
        return {"correct": int((logits.argmax(-1) == batch.labels).sum())}
