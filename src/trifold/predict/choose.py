"""Multiple choice: the logits of a text with each choice -> probabilities of the choices."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from trifold.errors import UsageError
from trifold.predict.classify import Label
from trifold.predict.model_reader import ModelReader


def choose(
    reader: ModelReader, texts: Sequence[str], *, choices: Sequence[str] = ()
) -> list[list[Label]]:
    """The choices with their probabilities for each text, best first."""
    if len(choices) < 2:
        raise UsageError("choices: two or more texts are required")
    reader = replace(
        reader, places=[reader.place(n, len(texts)) for n in range(len(texts)) for _ in choices]
    )
    repeated = [text for text in texts for _ in choices]
    logits = torch.cat(reader.run(repeated, [*choices] * len(texts), reader.head("choice")))
    rows = logits.view(-1, len(choices)).softmax(-1).tolist()
    return [sorted(map(Label, choices, row), key=lambda label: -label.score) for row in rows]
