"""The step that shows what logits cost: the vocabulary of GPT-2 and 16,384 tokens, in a model whose rest is small."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from setting import Setting
from torch import Tensor

WIDE = Setting(vocab_size=50_257, d_model=128, n_layers=2, n_heads=2, context=512, rows=32, dropout=0.0)


def random_windows() -> Iterator[tuple[Tensor, Tensor]]:
    """Invented tokens and what follows each, (rows, context)."""
    drawn = torch.Generator().manual_seed(1)
    while True:
        stretch = torch.randint(WIDE.vocab_size, (WIDE.rows, WIDE.context + 1), generator=drawn)
        yield stretch[:, :-1], stretch[:, 1:]
