"""Skip-grams: pairs of the last character with each earlier one, and a mask that keeps the pairs
that tell something.

A chain of order n needs a table of V^n histories. A skip-gram needs only pairs: for each distance
d, how often the character w followed the last character b when a stood d characters before w. Each
table is smoothed with the chain of the first order, as in markov.py:

    P_d(w | a, b) = (c_d(a b w) + t_d(a b) P(w | b)) / (c_d(a b) + t_d(a b))

Without a mask every pair has the same vote: P is the mean of all P_d. Most pairs say little, and
drown those that do. With a mask, only the pairs with the lowest entropy of P_d vote. The mask
depends on the characters themselves: it is a fixed table of what to attend to, and attention is a
learned one.

    python examples/road/skip_grams.py [FILE]
"""

from __future__ import annotations

import sys

import torch
from characters import PREDICTED, READ, bits_per_character, load_text
from markov import Markov
from torch import Tensor


class SkipGrams:
    """keep: pairs of each prediction that vote, or None for all of them. Distances are 2 to
    `farthest`.
    """

    def __init__(
        self, ids: Tensor, vocabulary: int, *, keep: int | None, farthest: int = 12
    ) -> None:
        self.keep, self.farthest = keep, farthest
        first = (
            Markov(ids, vocabulary, 1).probabilities(torch.arange(vocabulary)[:, None]).float()
        )  # (V, V)
        tables, shape = [], (vocabulary, vocabulary, vocabulary)
        for distance in range(2, farthest + 1):
            a, b, w = ids[:-distance], ids[distance - 1 : -1], ids[distance:]
            numbers = (a * vocabulary + b) * vocabulary + w
            tables.append(torch.bincount(numbers, minlength=vocabulary**3).view(shape).float())
        counts = torch.stack(tables)  # (D, V, V, V)
        self.size = int((counts > 0).sum())
        total, distinct = counts.sum(-1, keepdim=True), (counts > 0).sum(-1, keepdim=True)
        self.tables = torch.where(
            total > 0, (counts + distinct * first) / (total + distinct).clamp(min=1), first
        )
        self.entropies = -torch.special.xlogy(self.tables, self.tables).sum(-1)  # (D, V, V)

    def log_probabilities(self, windows: Tensor) -> Tensor:
        histories = windows[:, READ - self.farthest : -1].unfold(
            1, self.farthest, 1
        )  # (B, 64, farthest)
        assert histories.shape[1] == PREDICTED
        earlier, last = histories[..., :-1].flip(-1), histories[..., -1:]
        distances = torch.arange(self.farthest - 1)
        found = self.tables[distances, earlier, last]  # (B, 64, D, V)
        if self.keep is None:
            return found.mean(-2).log()
        best = self.entropies[distances, earlier, last].topk(self.keep, largest=False).indices
        return found.gather(-2, best[..., None].expand(*best.shape, found.shape[-1])).mean(-2).log()


def main() -> None:
    text = load_text(sys.argv[1] if len(sys.argv) > 1 else None)
    for keep in (None, 8, 4, 2, 1):
        model = SkipGrams(text.train, len(text.alphabet), keep=keep)
        print(f"{keep or 'all'} pairs: {bits_per_character(model, text.held_out):.3f} bits")


if __name__ == "__main__":
    main()
