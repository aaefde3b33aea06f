"""Embeddings: a character is a row of a matrix, and similar characters have similar rows.

As a one-hot vector, every character is as far from every other one, and a table has one row per
history. A product of a one-hot vector with a matrix C is a row of C, so looking up a row is the
same as a linear layer (`look_up`). Bengio et al. (2003) train C with the network that predicts the
next character from the rows of the last n:

    x = [C(w_(t-n)); …; C(w_(t-1))],    y = b + W x + U tanh(d + H x),    P = softmax(y)
                                                                             (section 2, equation 1)

Without U and H it is a log-bilinear model (Mnih & Hinton 2007): every earlier character adds its
own vote to the logits, as the pairs of skip_grams.py do, but the votes are learned together. The
table of a chain grows as V^n, the matrices here as n.

    python examples/road/embeddings.py [FILE]
"""

from __future__ import annotations

import sys

import torch
from characters import READ, Budget, Network, bits_per_character, load_text
from torch import Tensor, nn
from torch.nn import functional


def look_up(table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """(V, E), (…) -> (…, E) twice: one-hot vectors times the table, and rows of the table. They are
    equal.
    """
    return functional.one_hot(ids, len(table)).to(table.dtype) @ table, table[ids]


class FeedForward(Network):
    """`hidden` is the width of the tanh layer; 0 is the log-bilinear model."""

    def __init__(
        self, vocabulary: int, *, characters: int = 16, width: int = 32, hidden: int = 512
    ) -> None:
        super().__init__()
        self.characters = characters
        self.rows = nn.Parameter(torch.randn(vocabulary, width) * 0.1)  # C
        self.direct = nn.Linear(characters * width, vocabulary)  # W and b
        self.hidden = nn.Linear(characters * width, hidden) if hidden else None  # H and d
        self.output = nn.Linear(hidden, vocabulary, bias=False) if hidden else None  # U

    def forward(self, windows: Tensor) -> Tensor:
        """(B, 128) -> (B, 128 - n, V)."""
        histories = windows[:, :-1].unfold(1, self.characters, 1)
        x = functional.embedding(histories, self.rows).flatten(2)
        y = self.direct(x)
        return y if self.hidden is None else y + self.output(torch.tanh(self.hidden(x)))


def main() -> None:
    text = load_text(sys.argv[1] if len(sys.argv) > 1 else None)
    torch.manual_seed(1)
    for name, hidden in (("log-bilinear", 0), ("feed-forward", 512)):
        model = FeedForward(len(text.alphabet), hidden=hidden)
        assert torch.equal(*look_up(model.rows, text.held_out[:READ]))
        steps = model.fit(text.train, Budget(30), rate=3e-3)
        print(f"{name}: {bits_per_character(model, text.held_out):.3f} bits after {steps:,} steps")
    similarity = functional.normalize(model.rows, dim=1) @ functional.normalize(model.rows, dim=1).T
    for character in "aent.":
        if character in text.alphabet:
            nearest = similarity[text.alphabet.index(character)].topk(5).indices[1:]
            print(f"nearest to {character!r}: {text.decode(nearest.tolist())!r}")


if __name__ == "__main__":
    main()
