"""From ids to vectors: x_t = E[w_t]·√d_model + position, then dropout (Vaswani et al. 2017, sections 3.4 and 5.4).

And what others added: a vector for the segment, a norm on the sum (Devlin et al. 2019), a narrower table that a matrix
widens (Lan et al. 2020), patches of a picture in the place of tokens (Dosovitskiy et al. 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import ModelConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear, new_norm
from trifold.nn.masks import real_positions
from trifold.nn.packing import Packing
from trifold.nn.positions import new_positions


@dataclass
class Inputs:
    """What goes into a stack.

    tokens: (B, T) ids; left out where there are pixels.
    attend: (B, T) boolean, True at real positions; None where there is no padding. With a cache, of all keys so far.
    positions: (B or 1, T); counted over real tokens from 0 unless given.
    packing: where `tokens` is one row (1, N) that holds many; it then brings mask and positions with it.
    segments: (B, T) which kind of segment a token belongs to, from 0; all to the first unless given.
    order: (B, T) where each token comes in an order of factorisation, whose tokens see those up to themselves; unless
        given each sees what the shape of the model says.
    pixels: (B, colours, height, width), read instead of tokens by a model of patches.
    """

    tokens: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    attend: Tensor | None = None
    positions: Tensor | None = None
    packing: Packing | None = None
    segments: Tensor | None = None
    order: Tensor | None = None
    pixels: Tensor | None = None

    def places(self, start: int = 0) -> Tensor:
        """(B or 1, T) the position of each token; `start` tokens were read before."""
        if self.packing is not None:
            return self.packing.positions()
        if self.positions is not None:
            return self.positions
        end = start + self.tokens.shape[1]
        if self.attend is not None:
            return real_positions(self.attend)[:, start:end]
        return torch.arange(start, end, device=self.tokens.device)[None]

    def to(self, device: torch.device) -> Inputs:
        """The same on another device."""

        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            attend=moved(self.attend),
            positions=moved(self.positions),
            packing=None if self.packing is None else self.packing.to(device),
            segments=moved(self.segments),
            order=moved(self.order),
            pixels=moved(self.pixels),
        )


class _Lookup(torch.autograd.Function):
    """Rows of a table. The backward sums in fp32 at least: a frequent token's gradient would drown in bf16 rounding."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = weight.shape[0], weight.dtype
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        rows = rows if rows.dtype is torch.float64 else rows.float()
        total = rows.new_zeros(ctx.rows, rows.shape[-1]).index_add_(0, tokens.reshape(-1), rows)
        return total.to(ctx.dtype), None


class TokenEmbedding(nn.Module):
    """weight (V, E). One-hot rows times the table are a look-up."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, E)."""
        if torch.is_grad_enabled() and self.weight.requires_grad:
            return _Lookup.apply(self.weight, tokens)  # type: ignore[no-untyped-call]
        return F.embedding(tokens, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


class TokenTypes(nn.Module):
    """weight (types, E): one vector a kind of segment."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_token_types, config.embedding_width))

    def forward(self, segments: Tensor | None) -> Tensor:
        """(B, T) -> (B, T, E), or (E,) of the first where nothing is said."""
        if segments is None:
            return self.weight[0]
        return _Lookup.apply(self.weight, segments)  # type: ignore[no-untyped-call]


# Positions without a table go on for ever; whoever generates still minds max_positions.
_ENDLESS = frozenset({"rotary", "relative", "relative-sinusoidal", "alibi"})


class Embeddings(nn.Module):
    """Tokens, scaled, plus positions and segments; norm; dropout on the sum. Stacks may share the token table.

    `output` is the place where the result can be read.
    """

    def __init__(self, config: ModelConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = new_positions(config)
        self.token_types = TokenTypes(config) if config.n_token_types else None
        self.norm = new_norm(config, config.embedding_width) if config.embedding_norm else None
        self.drop = Dropout(_dropout(config))
        self.projection = (
            Linear(config.embedding_width, config.d_model) if config.has_embedding_projection else None
        )
        self.query = nn.Parameter(torch.empty(1, config.d_model)) if config.query_stream else None
        self.output = HookPoint("state")
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.max_positions = config.max_positions
        self.ends = config.positions not in _ENDLESS
        self.tells_segments = config.n_token_types > 0 or config.segment_offsets

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, T, E); `start` is the position of the first token (the length of a cache).

        Raises ValueError where a position lies beyond max_positions, and for segments of a model without them.
        """
        positions = inputs.places(start)
        if self.ends:
            self._refuse_long(inputs, positions, start)
        x = self.tokens(inputs.tokens)
        x = self.positions(x * self.scale if self.scale != 1.0 else x, positions)
        if self.token_types is not None:
            x = x + self.token_types(inputs.segments)
        elif inputs.segments is not None and not self.tells_segments:
            raise ValueError(
                "segments are given, and this model knows none (n_token_types = 0): leave them out"
            )
        if self.norm is not None:
            x = self.norm(x)
        x = self.drop(x)
        out: Tensor = self.output(x if self.projection is None else self.projection(x))
        return out

    def questions(self, asked: Tensor) -> Tensor:
        """What the second stream begins with at the places `asked` (B, P): the same vector everywhere -> (B, P, E)."""
        assert self.query is not None, "this model has no second stream (query_stream)"
        asking: Tensor = self.drop(self.query.expand(*asked.shape, -1))
        return asking

    def _refuse_long(self, inputs: Inputs, positions: Tensor, start: int) -> None:
        packing, end = inputs.packing, start + inputs.tokens.shape[1]
        if packing is not None:
            longest = packing.shape[1]
        elif inputs.positions is None and (inputs.attend is None or end <= self.max_positions):
            longest = end
        else:  # what is given, or so wide that it matters which columns are padding
            longest = int(positions.max()) + 1
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens do not fit max_positions = {self.max_positions}: "
                "shorten the text or use a model with more positions"
            )


class PatchEmbeddings(nn.Module):
    """Patches of a picture, each flattened and projected, after a class token; plus positions; norm; dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.patch_size is not None, "pictures are read in patches"
        self.patch, self.shape = config.patch_size, (config.n_channels, *(config.image_size or ()))
        self.patches = Linear(config.n_channels * self.patch[0] * self.patch[1], config.d_model)
        self.class_token = nn.Parameter(torch.empty(config.d_model))
        self.positions = new_positions(config)
        self.norm = new_norm(config) if config.embedding_norm else None
        self.drop = Dropout(_dropout(config))
        self.output = HookPoint("state")

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, 1 + patches, E). Raises ValueError for no pictures, or of another size."""
        pixels = inputs.pixels
        if pixels is None or tuple(pixels.shape[1:]) != self.shape:
            given = "no pixels" if pixels is None else f"pictures of {tuple(pixels.shape[1:])}"
            raise ValueError(f"{given}: this model reads pictures of (colours, height, width) = {self.shape}")
        x = self.patches(patched(pixels, self.patch))
        x = torch.cat([self.class_token.expand(x.shape[0], 1, -1), x], 1)
        x = self.positions(x, torch.arange(x.shape[1], device=x.device)[None])
        if self.norm is not None:
            x = self.norm(x)
        out: Tensor = self.output(self.drop(x))
        return out


def patched(pixels: Tensor, patch: tuple[int, int]) -> Tensor:
    """(B, C, H, W) -> (B, patches, C·tall·wide), row by row."""
    rows, columns = pixels.unfold(2, patch[0], patch[0]), patch[1]
    tiles = rows.unfold(3, columns, columns)  # (B, C, H / tall, W / wide, tall, wide)
    return tiles.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _dropout(config: ModelConfig) -> float:
    return config.dropout if config.embedding_dropout is None else config.embedding_dropout
