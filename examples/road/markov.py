"""Markov chains: the next character depends on the last one, or on the last few.

Markov (1913) counted vowels and consonants in a novel in verse; Shannon (1948, section 3) drew
English from chains of characters and words. The chain of order n is a table of counts c(h w): how
often the character w followed the history h of n characters. Longer histories predict better, but
most of them never occurred, so each order is interpolated with the one before it (Witten & Bell
1991). With t(h) distinct characters after h, and h' the history without its first character:

    P(w | h) = (c(h w) + t(h) P(w | h')) / (c(h) + t(h)),    P(w) is interpolated with 1 / V

    python examples/road/markov.py [FILE]
"""

from __future__ import annotations

import sys

import torch
from characters import PREDICTED, READ, bits_per_character, load_text
from torch import Tensor


class Markov:
    """A chain of some order, fitted to ids below V. V^(order + 1) must be below 2^63."""

    def __init__(self, ids: Tensor, vocabulary: int, order: int) -> None:
        self.vocabulary, self.order = vocabulary, order
        # For each length of a history: the sequences h w that occurred, as numbers, and counts.
        self.tables = []
        for length in range(order + 1):
            sequences = self.number(ids.unfold(0, length + 1, 1))
            self.tables.append(sequences.unique(return_counts=True))

    @property
    def size(self) -> int:
        """Counts that are not 0."""
        return sum(len(counts) for _, counts in self.tables)

    def number(self, sequences: Tensor) -> Tensor:
        """(…, n) -> (…): a sequence of characters as a number with the base V."""
        total = torch.zeros(sequences.shape[:-1], dtype=torch.int64)
        for character in sequences.unbind(-1):
            total = total * self.vocabulary + character
        return total

    def probabilities(self, histories: Tensor) -> Tensor:
        """(…, order) -> (…, V) of the next character."""
        found = torch.full(
            (*histories.shape[:-1], self.vocabulary), 1 / self.vocabulary, dtype=torch.float64
        )
        for length, (sequences, counts) in enumerate(self.tables):
            history = self.number(histories[..., self.order - length :])
            wanted = history[..., None] * self.vocabulary + torch.arange(self.vocabulary)
            places = torch.searchsorted(sequences, wanted).clamp(max=len(sequences) - 1)
            count = torch.where(sequences[places] == wanted, counts[places], 0)
            total, distinct = count.sum(-1, keepdim=True), (count > 0).sum(-1, keepdim=True)
            interpolated = (count + distinct * found) / (total + distinct).clamp(min=1)
            found = torch.where(
                total > 0, interpolated, found
            )  # a history that never occurred tells nothing
        return found

    def log_probabilities(self, windows: Tensor) -> Tensor:
        histories = windows[:, READ - self.order : -1].unfold(1, self.order, 1)
        assert histories.shape[1] == PREDICTED
        return self.probabilities(histories).log()


def main() -> None:
    text = load_text(sys.argv[1] if len(sys.argv) > 1 else None)
    for order in range(1, 8):
        model = Markov(text.train, len(text.alphabet), order)
        print(
            f"order {order}: {bits_per_character(model, text.held_out):.3f} bits, "
            f"{model.size:,} counts"
        )


if __name__ == "__main__":
    main()
