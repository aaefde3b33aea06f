"""The Transformer: attention without recurrence (Vaswani et al. 2017), from the parts of trifold.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d) V                                           (equation 1)

Every character attends to itself and to all characters before it, in each of four layers. Scores
are products instead of the additive form, and a query does not depend on the output before it, so
all characters of a window are computed at once. `trifold train shakespeare-char-tiny` trains nearly
the same model with a better optimizer.

    python examples/road/transformer.py [FILE]
"""

from __future__ import annotations

import sys

import torch
from characters import WINDOW, Budget, Network, bits_per_character, load_text
from torch import Tensor

from trifold import ModelConfig, Transformer
from trifold.nn import Inputs


class TransformerModel(Network):
    """A decoder of four layers."""

    def __init__(self, vocabulary: int, *, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        config = ModelConfig(
            shape="decoder", vocab_size=vocabulary, max_positions=WINDOW,
            positions="rotary", norm_placement="pre",
            d_model=width, n_layers=layers, n_heads=4, d_ff=4 * width,
            dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        self.model = Transformer(config)

    def forward(self, windows: Tensor) -> Tensor:
        """(B, 128) -> (B, 127, V)."""
        return self.model.lm_head(self.model.decode(Inputs(windows[:, :-1])))


def main() -> None:
    text = load_text(sys.argv[1] if len(sys.argv) > 1 else None)
    torch.manual_seed(1)
    model = TransformerModel(len(text.alphabet))
    steps = model.fit(text.train, Budget(60), rate=2e-3)
    print(f"Transformer: {bits_per_character(model, text.held_out):.3f} bits after {steps:,} steps")


if __name__ == "__main__":
    main()
