"""Recurrent networks: language models, and the encoder-decoder with additive attention that
preceded the Transformer.

    language model     h_t = f(x_t, h_(t-1)): a state instead of a window. f is tanh(W x + U h + b)
                       (Elman 1990), or an LSTM, whose gates let a state pass many steps unchanged
                       (Hochreiter & Schmidhuber 1997)
    encoder-decoder    one network reads 64 characters, another one starts from its last state and
                       writes the next 64 (Sutskever et al. 2014)
    with attention     the decoder reads all states of the encoder again before each character
                       (Bahdanau et al. 2015, section 3.1; their encoder also reads backwards)

Every model is trained with teacher forcing: the character before is that of the text. All are
scored on the same characters, with the same 64 before them.

    python examples/road/recurrent.py [FILE]
"""

from __future__ import annotations

import sys

import torch
from characters import PREDICTED, READ, Budget, Network, bits_per_character, load_text
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM}


class AdditiveAttention(nn.Module):
    """e_j = v · tanh(W s + U h_j),    a = softmax(e),    c = Σ a_j h_j."""

    def __init__(self, width: int, inner: int = 64) -> None:
        super().__init__()
        self.query = nn.Linear(width, inner)  # W
        self.key = nn.Linear(width, inner, bias=False)  # U
        self.score = nn.Linear(inner, 1, bias=False)  # v

    def forward(
        self, state: Tensor, memory: Tensor, keys: Tensor, attend: Tensor
    ) -> tuple[Tensor, Tensor]:
        """state (B, E), memory h (B, S, E), keys U h (B, S, inner), attend (B, S) -> c (B, E), a
        (B, S).
        """
        scores = self.score(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(~attend, -torch.inf).softmax(dim=-1)
        return (weights[:, None] @ memory).squeeze(1), weights


class RecurrentLanguageModel(Network):
    """One network reads all characters and predicts the one after each."""

    def __init__(self, vocabulary: int, cell: str = "lstm", *, width: int = 256) -> None:
        super().__init__()
        self.rows = nn.Embedding(vocabulary, 64)
        self.cell = CELLS[cell](64, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, windows: Tensor) -> Tensor:
        """(B, 128) -> (B, 127, V)."""
        return self.output(self.cell(self.rows(windows[:, :-1]))[0])


class EncoderDecoder(Network):
    """`attention` is False for a decoder that knows the source only from the last state of the
    encoder.
    """

    def __init__(
        self, vocabulary: int, cell: str = "lstm", *, attention: bool = True, width: int = 256
    ) -> None:
        super().__init__()
        self.rows = nn.Embedding(vocabulary, 64)
        self.encoder = CELLS[cell](64, width, batch_first=True)
        self.decoder = CELLS[cell](64 + width * attention, width, batch_first=True)
        self.attention = AdditiveAttention(width) if attention else None
        self.output = nn.Linear(width * (1 + attention), vocabulary)

    def forward(self, windows: Tensor) -> Tensor:
        """(B, 128) -> (B, 64, V)."""
        source = windows[:, :READ]
        attend = torch.ones_like(source, dtype=torch.bool)
        return self.decode(windows[:, READ - 1 : -1], *self.encode(source, attend), attend)

    def encode(
        self, source: Tensor, attend: Tensor
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """source (B, S), attend (B, S), False at padding after a text -> all states (B, S, E), and
        the last one.
        """
        lengths = attend.sum(dim=1)
        packed = pack_padded_sequence(
            self.rows(source), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        return pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])[0], last

    def decode(
        self, before: Tensor, memory: Tensor, state: Tensor | tuple[Tensor, Tensor], attend: Tensor
    ) -> Tensor:
        """before (B, T), the character before each that is predicted -> logits (B, T, V)."""
        x = self.rows(before)
        if self.attention is None:
            return self.output(self.decoder(x, state)[0])
        keys, outputs = self.attention.key(memory), []
        for step in x.split(
            1, dim=1
        ):  # the query is the last state, so one character waits for another
            query = (state[0] if isinstance(state, tuple) else state)[0]
            context, _ = self.attention(query, memory, keys, attend)
            hidden, state = self.decoder(torch.cat([step, context[:, None]], dim=2), state)
            outputs.append(torch.cat([hidden, context[:, None]], dim=2))
        return self.output(torch.cat(outputs, dim=1))


def main() -> None:
    text = load_text(sys.argv[1] if len(sys.argv) > 1 else None)
    size = len(text.alphabet)
    for cell in CELLS:
        for name in ("language model", "encoder-decoder", "with attention"):
            torch.manual_seed(1)
            lm = name == "language model"
            model = (
                RecurrentLanguageModel(size, cell)
                if lm
                else EncoderDecoder(size, cell, attention=name[0] == "w")
            )
            steps = model.fit(text.train, Budget(30), rate=3e-3)
            score = bits_per_character(model, text.held_out)
            print(
                f"{cell}, {name}: {score:.3f} bits after {steps:,} steps of {PREDICTED} "
                "characters in 32 rows"
            )


if __name__ == "__main__":
    main()
