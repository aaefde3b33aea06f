"""Naive Bayes on a bag of words (Maron 1961): a baseline for `trifold demo read`.

    python examples/naive_bayes.py

P(class | text) ∝ P(class) Π P(word | class),
                                           P(word | class) = (c(word, class) + α) / (c(class) + α V)

α = 1 (Laplace) overestimates rare words in small classes, so α is selected on the validation split.
Word pairs, which help on short texts (Wang & Manning 2012), are used if they improve the validation
accuracy."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from trifold.data.embedded import load_rows

WORD = re.compile(r"\w+")
ALPHAS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


class NaiveBayes:
    """A classifier fitted to texts and their labels; with `pairs`, adjacent words count as words
    too.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        alpha: float = 1.0,
        pairs: bool = False,
    ) -> None:
        self.alpha, self.pairs = alpha, pairs
        self.class_counts = Counter(labels)
        self.word_counts: dict[str, Counter[str]] = {
            label: Counter() for label in self.class_counts
        }
        for text, label in zip(texts, labels, strict=True):
            self.word_counts[label].update(self.words(text))
        self.vocabulary = set().union(*self.word_counts.values())

    def words(self, text: str) -> list[str]:
        words = WORD.findall(text.lower())
        return [*words, *map(" ".join, pairwise(words))] if self.pairs else words

    def predict(self, text: str) -> str:
        """The most probable label; words that are not in the vocabulary are ignored."""
        words = [word for word in self.words(text) if word in self.vocabulary]
        return max(sorted(self.class_counts), key=lambda label: self.log_probability(label, words))

    def log_probability(self, label: str, words: Sequence[str]) -> float:
        counts = self.word_counts[label]
        total = counts.total() + self.alpha * len(self.vocabulary)
        likelihood = sum(math.log((counts[word] + self.alpha) / total) for word in words)
        return math.log(self.class_counts[label]) + likelihood

    def accuracy(self, texts: Sequence[str], labels: Sequence[str]) -> float:
        return sum(
            self.predict(text) == label for text, label in zip(texts, labels, strict=True)
        ) / len(texts)


def select(
    texts: Sequence[str],
    labels: Sequence[str],
    valid_texts: Sequence[str],
    valid_labels: Sequence[str],
) -> NaiveBayes:
    """The model with the best validation accuracy, over all α, with and without word pairs."""
    models = (
        NaiveBayes(texts, labels, alpha=alpha, pairs=pairs)
        for pairs in (False, True)
        for alpha in ALPHAS
    )
    return max(models, key=lambda model: model.accuracy(valid_texts, valid_labels))


def main() -> None:
    train, valid, test = (
        (
            [f"{row['sentence1']} {row['sentence2']}" for row in load_rows("translations", split)],
            [row["label"] for row in load_rows("translations", split)],
        )
        for split in ("train", "valid", "test")
    )
    model = select(*train, *valid)
    features = "words and word pairs" if model.pairs else "words"
    print(
        f"naive Bayes on {features}, α = {model.alpha:g}: {model.accuracy(*test):.1%} of "
        f"{len(test[0])} pairs"
    )


if __name__ == "__main__":
    main()
