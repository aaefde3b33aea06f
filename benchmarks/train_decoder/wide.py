"""A step dominated by logits: the same decoder with the vocabulary of GPT-2 and 16,384 tokens per
step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from setting import Setting
from torch import Tensor

WIDE = replace(Setting(), vocab_size=50_257, rows=64)


def random_windows() -> Iterator[tuple[Tensor, Tensor]]:
    """Random tokens and the next token of each, (rows, context)."""
    drawn = torch.Generator().manual_seed(1)
    while True:
        stretch = torch.randint(WIDE.vocab_size, (WIDE.rows, WIDE.context + 1), generator=drawn)
        yield stretch[:, :-1], stretch[:, 1:]
