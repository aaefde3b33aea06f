"""Naive Bayes on a bag of words (Maron 1961): what tells topics apart without any network.

P(class | text) ∝ P(class) Π P(word | class),    P(word | class) = (c(word, class) + 1) / (c(class) + V)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


class NaiveBayes:
    """Counted from texts and their labels."""

    def __init__(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        self.texts = Counter(labels)
        self.words: dict[str, Counter[str]] = {label: Counter() for label in self.texts}
        for text, label in zip(texts, labels, strict=True):
            self.words[label].update(words(text))
        self.known = set().union(*self.words.values())
        self.totals = {label: found.total() + len(self.known) for label, found in self.words.items()}

    def __call__(self, text: str) -> str:
        """The likeliest label; words that no class has say nothing."""
        said = [word for word in words(text) if word in self.known]
        return max(sorted(self.texts), key=lambda label: self._log_probability(label, said))

    def _log_probability(self, label: str, said: Sequence[str]) -> float:
        counts, total = self.words[label], self.totals[label]
        return math.log(self.texts[label]) + sum(math.log((counts[word] + 1) / total) for word in said)
