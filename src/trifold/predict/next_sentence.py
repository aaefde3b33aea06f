"""Whether one text follows another (Devlin et al. 2019), or two texts are in order (Lan et al. 2020).

The pooler's vector gives two logits, the first of which stands for yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trifold.predict.model_reader import ModelReader


class Follows(NamedTuple):
    """Whether the second text follows the first, and the probability of that."""

    follows: bool
    score: float


def next_sentence(reader: ModelReader, texts: Sequence[str], pairs: Sequence[str]) -> list[Follows]:
    """For each of `texts`, whether the text of `pairs` follows it."""
    logits = reader.run(texts, pairs, reader.head("next-sentence"))
    scores = [float(row.softmax(-1)[0]) for row in logits]
    return [Follows(score > 0.5, score) for score in scores]
