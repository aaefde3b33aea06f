"""Batches for the plain loops: similar lengths together, limited padded tokens, a new order in each
epoch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from prepare import BOS, EOS, PAD
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids (B, S) and (B, T), padded on the right, and how many of them are real."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    source_tokens: int
    target_tokens: int

    @property
    def positions(self) -> int:
        return self.source.numel() + self.target_out.numel()


def plan(lengths: Sequence[tuple[int, int]], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices of the pairs of each batch of one epoch: every pair once, similar lengths together.

    Sentences times longest side stay within `batch_tokens`. The target is sorted first, since the
    vocabulary makes a padded target position the dearest."""
    chance = random.Random(seed)
    order = list(range(len(lengths)))
    chance.shuffle(order)
    order.sort(key=lambda i: (lengths[i][1], lengths[i][0]))

    planned: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, *lengths[i])
        if not planned or (len(planned[-1]) + 1) * longest > batch_tokens:
            planned.append([])
            longest = max(lengths[i])
        planned[-1].append(i)
    chance.shuffle(planned)
    return planned


def endless_batches(folder: Path, batch_tokens: int, seed: int = 1) -> Iterator[Batch]:
    """Batches of the prepared data set, epoch after epoch."""
    ids = json.loads((folder / "pairs.json").read_text(encoding="utf-8"))
    sources, targets = ids["source"], ids["target"]
    lengths = [
        (len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)
    ]
    while True:
        for chosen in plan(lengths, batch_tokens, seed):
            yield Batch(
                source=padded([sources[i] for i in chosen]),
                target_in=padded([[BOS, *targets[i]] for i in chosen]),
                target_out=padded([[*targets[i], EOS] for i in chosen]),
                source_tokens=sum(lengths[i][0] for i in chosen),
                target_tokens=sum(lengths[i][1] for i in chosen),
            )
        seed += 1


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
