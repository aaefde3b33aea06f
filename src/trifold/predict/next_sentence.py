"""Whether one text follows another (Devlin et al. 2019), or two stand in their order (Lan et al. 2020).

prediction      the pooler's vector -> two logits, the first of which says yes -> a softmax
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trifold.predict.reading import Reading


class Follows(NamedTuple):
    """Whether the second text follows the first, and the probability that it does."""

    follows: bool
    score: float


def next_sentence(reading: Reading, texts: Sequence[str], pairs: Sequence[str]) -> list[Follows]:
    """For each of `texts`, whether its partner of `pairs` follows it."""
    logits = reading.each(texts, pairs, reading.head("next-sentence"))
    scores = [float(row.softmax(-1)[0]) for row in logits]
    return [Follows(score > 0.5, score) for score in scores]
