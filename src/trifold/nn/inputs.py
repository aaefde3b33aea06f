"""What models and stacks read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.nn.masks import Mask, real_positions
from trifold.nn.packing import UNPACKED, Packing, Unpacked


@dataclass
class RowFeatures:
    """Counted features of B rows, or of B tokens in the layout of the states, for parts that
    read them beside the states of tokens.

    ids, values (N,): the numbers and the values of all features. starts (B·K + 1): where those of
        each row begin, in each of K blocks.
    logits (B, C): what a part computes from the features, if it is known; they are empty then.
    """

    ids: Tensor
    values: Tensor
    starts: Tensor
    logits: Tensor | None = None

    @classmethod
    def known(cls, logits: Tensor) -> RowFeatures:
        """Rows whose logits are known."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(none, torch.zeros(0), torch.zeros(1, dtype=torch.int64), logits)

    def to(self, device: torch.device, *, non_blocking: bool = True) -> RowFeatures:
        """A copy on another device."""
        moved = {
            each.name: x.to(device, non_blocking=non_blocking)
            for each in fields(self)
            if (x := getattr(self, each.name)) is not None
        }
        return replace(self, **moved)


@dataclass
class Inputs:
    """The input of a stack.

    tokens: (B, T) ids; not used by models of images.
    attend: (B, T) boolean, True at real tokens; None if there is no padding. With a cache: (B, S),
        past and new tokens.
    positions: (B or 1, T); default: counted over real tokens, from 0.
    packing: the layout; if `tokens` is one row (1, N) that holds many, it defines mask and
        positions.
    segments: (B, T) the kind of segment of each token, from 0; default: see
        `CoreConfig.separator_id`.
    matches: (B, T) whether the word of each token, or its first letters, also stand in the other
        text of a pair (`nn.variants.word_matches`); default: in none.
    order: (B, T) the rank of each token in a factorization order; tokens attend to those up to
        their own rank.
    globals: (B, T) boolean, tokens that attend to all and that all attend to; default: see
        `CoreConfig.global_tokens`.
    edges: (B, T, T) boolean, or by head (B, H, T, T): which tokens an encoder's token attends to
        besides itself; default: all. Of packed rows on the grid.
    pixels: (B, channels, height, width), for models of images.
    features: of the rows or of all tokens, for a part that adds to their logits; without them it
        adds nothing.
    """

    tokens: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    attend: Tensor | None = None
    positions: Tensor | None = None
    packing: Packing | Unpacked = UNPACKED
    segments: Tensor | None = None
    matches: Tensor | None = None
    order: Tensor | None = None
    globals: Tensor | None = None
    edges: Tensor | None = None
    pixels: Tensor | None = None
    features: RowFeatures | None = None

    def token_positions(self, start: int = 0) -> Tensor:
        """(B or 1, T) the position of each token; `start` is the length of the cache."""
        if isinstance(self.packing, Packing):
            return self.packing.positions()
        if self.positions is not None:
            return self.positions
        end = start + self.tokens.shape[1]
        if self.attend is not None:
            return real_positions(self.attend)[:, start:end]
        return torch.arange(start, end, device=self.tokens.device)[None]

    @property
    def real(self) -> Tensor | None:
        """(B, T) True at real tokens, also of packed rows; None if all are."""
        return self.packing.attend if self.attend is None else self.attend

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T), also of packed rows."""
        if isinstance(self.packing, Packing):
            return self.packing.shape
        rows, columns = self.tokens.shape
        return rows, columns

    def grid(self) -> Inputs:
        """These inputs with tokens (B, T), also if they are packed."""
        tokens = self.packing.grid(self.tokens[..., None])[..., 0]
        return replace(self, tokens=tokens, attend=self.real, packing=UNPACKED)

    def first_columns(self) -> Tensor:
        """(B,) the column of each row's first real token; not of packed rows, see `grid`."""
        if self.attend is not None:
            return self.attend.long().argmax(1)
        rows = self.tokens if self.pixels is None else self.pixels
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)

    def last_columns(self) -> Tensor:
        """(B,) the column of each row's last real token."""
        columns = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        columns = columns.expand_as(self.tokens)
        if self.attend is not None:
            columns = columns * self.attend
        return columns.amax(1)

    def to(self, device: torch.device, *, non_blocking: bool = True) -> Inputs:
        """A copy on another device."""
        present = {
            each.name: x for each in fields(self) if (x := getattr(self, each.name)) is not None
        }
        return replace(
            self, **{name: x.to(device, non_blocking=non_blocking) for name, x in present.items()}
        )


@dataclass
class Memory:
    """The output of an encoder: hidden (B, S, E) or packed (1, N, E); attend (B, S), True at real
    positions.
    """

    hidden: Tensor
    attend: Tensor | None = None
    packing: Packing | Unpacked = UNPACKED

    def select(self, rows: Tensor) -> Memory:
        """The chosen rows."""
        return Memory(self.hidden[rows], None if self.attend is None else self.attend[rows])


class Request(NamedTuple):
    """What a stack reads besides x: masks, a memory (B, S, E), and where its tokens are.

    positions: (B or 1, T), by default those of the mask. segments: (B, T), or packed (1, N), for
        scores that depend on them.
    """

    mask: Mask
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
