"""Naive Bayes on a bag of words (Maron 1961): what tells topics apart without any network.

P(class | text) ∝ P(class) Π P(word | class),    P(word | class) = (c(word, class) + α) / (c(class) + α V)

With α = 1 (Laplace) the many words of a small class are made too likely. So α is chosen on held-out texts, and so is
whether pairs of words are counted too, which help on short texts (Wang & Manning 2012).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

WORD = re.compile(r"\w+")
ALPHAS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


class NaiveBayes:
    """Counted from texts and their labels. pairs: two words that stand together count as a word too."""

    def __init__(
        self, texts: Sequence[str], labels: Sequence[str], *, alpha: float = 1.0, pairs: bool = False
    ) -> None:
        self.alpha, self.pairs = alpha, pairs
        self.texts = Counter(labels)
        self.words: dict[str, Counter[str]] = {label: Counter() for label in self.texts}
        for text, label in zip(texts, labels, strict=True):
            self.words[label].update(self._counted(text))
        self.known = set().union(*self.words.values())
        self.totals = {label: found.total() + alpha * len(self.known) for label, found in self.words.items()}

    def __call__(self, text: str) -> str:
        """The likeliest label; words that no class has say nothing."""
        said = [word for word in self._counted(text) if word in self.known]
        return max(sorted(self.texts), key=lambda label: self._log_probability(label, said))

    def right(self, texts: Sequence[str], labels: Sequence[str]) -> int:
        """How many texts get their label."""
        return sum(self(text) == label for text, label in zip(texts, labels, strict=True))

    def _counted(self, text: str) -> list[str]:
        found = words(text)
        return [*found, *map(" ".join, pairwise(found))] if self.pairs else found

    def _log_probability(self, label: str, said: Sequence[str]) -> float:
        counts, total, alpha = self.words[label], self.totals[label], self.alpha
        return math.log(self.texts[label]) + sum(math.log((counts[word] + alpha) / total) for word in said)


def chosen(
    texts: Sequence[str], labels: Sequence[str], held_texts: Sequence[str], held_labels: Sequence[str]
) -> NaiveBayes:
    """Counted from the texts; of all α, without pairs and with them, what tells most of the held-out ones right."""
    models = (
        NaiveBayes(texts, labels, alpha=alpha, pairs=pairs) for pairs in (False, True) for alpha in ALPHAS
    )
    return max(models, key=lambda model: model.right(held_texts, held_labels))
