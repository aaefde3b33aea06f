"""Multiple choice: the logits of a text with each choice -> probabilities of the choices."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from trifold.errors import UsageError
from trifold.predict.classify import Label
from trifold.predict.model_reader import ModelReader


def choose(
    reader: ModelReader,
    texts: Sequence[str],
    *,
    choices: Sequence[str] | Sequence[Sequence[str]] = (),
    questions: Sequence[str | None] | None = None,
) -> list[list[Label]]:
    """The choices with their probabilities for each text, best first.

    choices: the same for all texts, or a list for each. questions: of each text, which the model
    reads before each choice. Raises UsageError for less than two choices, and another number of
    questions than of texts.
    """
    is_shared = all(isinstance(choice, str) for choice in choices)
    rows: list[Sequence[str]] = [choices] * len(texts) if is_shared else [*choices]  # type: ignore[list-item]
    if any(len(row) < 2 for row in rows):
        raise UsageError("choices: two or more texts are required")
    if questions is not None and len(questions) != len(texts):
        raise UsageError(f"questions: {len(questions)} for {len(texts)} texts; give one for each")
    asked = zip(questions or [None] * len(texts), rows, strict=True)
    places = [reader.place(n, len(texts)) for n, row in enumerate(rows) for _ in row]
    repeated = [text for text, row in zip(texts, rows, strict=True) for _ in row]
    pairs = [choice for each in asked for choice in after_question(*each)]
    reader = replace(reader, places=places)
    logits = torch.cat(reader.run(repeated, pairs, reader.head("choice")))
    found = zip(rows, logits.split([len(row) for row in rows]), strict=True)
    return [_sorted(row, each.softmax(-1).tolist()) for row, each in found]


def after_question(question: str | None, choices: Sequence[str]) -> list[str]:
    """What the model reads of the choices: each after the question, if there is one."""
    return [f"{question} {choice}" if question else choice for choice in choices]


def _sorted(choices: Sequence[str], scores: Sequence[float]) -> list[Label]:
    return sorted(map(Label, choices, scores), key=lambda label: -label.score)
