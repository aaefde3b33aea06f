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
    rows = _choices_of_texts(choices, len(texts))
    if any(len(row) < 2 for row in rows):
        raise UsageError("choices: two or more texts are required")
    if questions is not None and len(questions) != len(texts):
        raise UsageError(f"questions: {len(questions)} for {len(texts)} texts; give one for each")
    places = [reader.place(n, len(texts)) for n, row in enumerate(rows) for _ in row]
    repeated = [text for text, row in zip(texts, rows, strict=True) for _ in row]
    pairs = []
    for question, row in zip(questions or [None] * len(texts), rows, strict=True):
        pairs += after_question(question, row)
    reader = replace(reader, places=places)
    logits = torch.cat(reader.run(repeated, pairs, reader.head("choice")))
    logits_of_texts = logits.split([len(row) for row in rows])
    return [
        _sorted(row, logits_of_text.softmax(-1).tolist())
        for row, logits_of_text in zip(rows, logits_of_texts, strict=True)
    ]


def _choices_of_texts(
    choices: Sequence[str] | Sequence[Sequence[str]], count: int
) -> list[Sequence[str]]:
    """The choices of each of `count` texts, which may share them."""
    shared = [choice for choice in choices if isinstance(choice, str)]
    if len(shared) == len(choices):
        return [shared] * count
    return [*choices]


def after_question(question: str | None, choices: Sequence[str]) -> list[str]:
    """What the model reads of the choices: each after the question, if there is one."""
    if not question:
        return [*choices]
    return [f"{question} {choice}" for choice in choices]


def _sorted(choices: Sequence[str], scores: Sequence[float]) -> list[Label]:
    return sorted(map(Label, choices, scores), key=lambda label: -label.score)
