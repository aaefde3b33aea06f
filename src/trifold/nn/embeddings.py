"""Embeddings: x_t = E[w_t]·√d_model + position, then dropout (Vaswani et al. 2017, sections 3.4 and
5.4).

Extensions: an embedding of the segment and a norm (Devlin et al. 2019), a narrower table with a
projection to d_model (Lan et al. 2020), patches of an image instead of tokens (Dosovitskiy et al.
2021).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import InitVar, dataclass, field, fields, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.config import ModelConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear, new_norm
from trifold.nn.masks import real_positions
from trifold.nn.packing import Packing
from trifold.nn.positions import new_positions


@dataclass
class Inputs:
    """The input of a stack.

    tokens: (B, T) ids; not used by models of images.
    attend: (B, T) boolean, True at real tokens; None if there is no padding. With a cache: (B, S),
        past and new tokens.
    positions: (B or 1, T); default: counted over real tokens, from 0.
    packing: if `tokens` is one row (1, N) that holds many; it defines mask and positions.
    segments: (B, T) the kind of segment of each token, from 0; default: see
        `ModelConfig.separator_id`.
    order: (B, T) the rank of each token in a factorization order; tokens attend to those up to
        their own rank.
    globals: (B, T) boolean, tokens that attend to all and that all attend to; default: see
        `ModelConfig.global_tokens`.
    pixels: (B, channels, height, width), for models of images.
    """

    tokens: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    attend: Tensor | None = None
    positions: Tensor | None = None
    packing: Packing | None = None
    segments: Tensor | None = None
    order: Tensor | None = None
    globals: Tensor | None = None
    pixels: Tensor | None = None
    ranks: InitVar[Tensor | None] = None  # deprecated name of `order`

    def __post_init__(self, ranks: Tensor | None) -> None:
        if ranks is not None:
            warnings.warn("ranks is deprecated; use order", DeprecationWarning, stacklevel=3)
            self.order = ranks

    def token_positions(self, start: int = 0) -> Tensor:
        """(B or 1, T) the position of each token; `start` is the length of the cache."""
        if self.packing is not None:
            return self.packing.positions()
        if self.positions is not None:
            return self.positions
        end = start + self.tokens.shape[1]
        if self.attend is not None:
            return real_positions(self.attend)[:, start:end]
        return torch.arange(start, end, device=self.tokens.device)[None]

    def first_columns(self) -> Tensor:
        """(B,) the column of each row's first real token."""
        if self.attend is not None:
            return self.attend.long().argmax(1)
        rows = self.tokens if self.pixels is None else self.pixels
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)

    def last_columns(self) -> Tensor:
        """(B,) the column of each row's last real token."""
        columns = torch.arange(self.tokens.shape[1], device=self.tokens.device).expand_as(
            self.tokens
        )
        return columns[:, -1] if self.attend is None else (columns * self.attend).amax(1)

    def to(self, device: torch.device, *, non_blocking: bool = True) -> Inputs:
        """A copy on another device."""
        present = {
            each.name: x for each in fields(self) if (x := getattr(self, each.name)) is not None
        }
        return replace(
            self, **{name: x.to(device, non_blocking=non_blocking) for name, x in present.items()}
        )


class _Lookup(torch.autograd.Function):
    """Rows of a table. The backward pass sums in fp32: in bf16 gradients of frequent tokens would
    be rounded away.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = weight.shape[0], weight.dtype
        return ops.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        rows = rows if rows.dtype is torch.float64 else rows.float()
        total = rows.new_zeros(ctx.rows, rows.shape[-1]).index_add_(0, tokens.reshape(-1), rows)
        return total.to(ctx.dtype), None


class TokenEmbedding(nn.Module):
    """The table of token embeddings: weight (V, E)."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, E)."""
        if torch.is_grad_enabled() and self.weight.requires_grad:
            return _Lookup.apply(self.weight, tokens)  # type: ignore[no-untyped-call]
        return ops.embedding(tokens, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


class TokenTypes(nn.Module):
    """The table of segment embeddings: weight (types, E)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_token_types, config.sum_width))

    def forward(self, segments: Tensor | None) -> Tensor:
        """(B, T) -> (B, T, E); without segments the embedding of the first kind (E,)."""
        if segments is None:
            return self.weight[0]
        return _Lookup.apply(self.weight, segments)  # type: ignore[no-untyped-call]


# Kinds of positions without a limit. Generation respects max_positions nevertheless.
_UNLIMITED = frozenset({"rotary", "relative", "relative-sinusoidal", "disentangled", "alibi"})


class Embeddings(nn.Module):
    """Scaled tokens plus positions and segments; norm; dropout; projection. Stacks may share the
    token table.

    The projection may be that of the tokens only, without bias (Zhang et al. 2022, "OPT", 350m).
    `output` is the hook point of the result.
    """

    def __init__(self, config: ModelConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = new_positions(config)
        self.token_types = TokenTypes(config) if config.n_token_types else None
        self.norm = new_norm(config, config.sum_width) if config.embedding_norm else None
        self.drop = Dropout(_dropout(config))
        self.projects_tokens = config.token_projection
        widths = (config.embedding_width, config.d_model)
        projects = config.has_embedding_projection
        self.projection = Linear(*widths, bias=not self.projects_tokens) if projects else None
        self.query = nn.Parameter(torch.empty(1, config.d_model)) if config.query_stream else None
        self.output = HookPoint("state")
        self.scale, self.rounds_scale = config.embedding_factor, config.embedding_scale_rounded
        self.max_positions = config.max_positions
        self.is_limited = config.learned_positions or config.positions not in _UNLIMITED
        self.uses_segments = config.n_token_types > 0 or config.segment_offsets

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, T, E); `start` is the position of the first token (the length of the cache).

        Raises ValueError for a position beyond max_positions, and for segments if the model does
        not use them.
        """
        positions = inputs.token_positions(start)
        if self.is_limited:
            self._check_length(inputs, positions, start)
        x = self.tokens(inputs.tokens)
        if self.projection is not None and self.projects_tokens:
            x = self.projection(x)
        x = self.positions(self._scaled(x), positions)
        if self.token_types is not None:
            x = x + self.token_types(inputs.segments)
        elif inputs.segments is not None and not self.uses_segments:
            raise ValueError("this model does not use segments (n_token_types = 0); leave them out")
        if self.norm is not None:
            x = self.norm(x)
        x = self.drop(x)
        if self.projection is not None and not self.projects_tokens:
            x = self.projection(x)
        return self.output(x)

    def _scaled(self, x: Tensor) -> Tensor:
        """x (…, E) times the factor, which may be rounded to the precision of x, as in Gemma: in
        bf16 √3072 is 55.5.
        """
        if self.scale == 1.0:
            return x
        return x * (x.new_full((), self.scale) if self.rounds_scale else self.scale)

    def query_vectors(self, query_index: Tensor) -> Tensor:
        """The input of the query stream, the same learned vector everywhere: query_index (B, P) ->
        (B, P, E).
        """
        assert self.query is not None, "this model has no query stream"
        return self.drop(self.query.expand(*query_index.shape, -1))

    def _check_length(self, inputs: Inputs, positions: Tensor, start: int) -> None:
        packing, end = inputs.packing, start + inputs.tokens.shape[1]
        if packing is not None:
            longest = packing.shape[1]
        elif inputs.positions is None and (inputs.attend is None or end <= self.max_positions):
            longest = end
        else:  # given positions, or rows so wide that padding matters
            longest = int(positions.max()) + 1
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens exceed max_positions = {self.max_positions}; "
                "shorten the text or use a model with more positions"
            )


class PatchEmbeddings(nn.Module):
    """Patches of an image, flattened and projected, after a class token; positions; norm; dropout.

    A stem of convolutions, each normalized per image, may come before (Xiao et al. 2021).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.patch_size is not None, "a model of images needs a patch_size"
        self.patch, self.shape = (
            config.patch_shape[1:],
            (config.n_channels, *(config.image_size or ())),
        )
        layers = (
            (nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(1, outputs), nn.GELU())
            for inputs, outputs, stride in config.stem_layers
        )
        self.stem = nn.Sequential(*chain(*layers))
        self.patches = Linear(math.prod(config.patch_shape), config.d_model)
        self.class_token = nn.Parameter(torch.empty(config.d_model))
        self.positions = new_positions(config)
        self.norm = new_norm(config) if config.embedding_norm else None
        self.drop = Dropout(_dropout(config))
        self.output = HookPoint("state")

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, 1 + patches, E). Raises ValueError without images, or for images of another
        size.
        """
        pixels = inputs.pixels
        if pixels is None or tuple(pixels.shape[1:]) != self.shape:
            given = "no pixels" if pixels is None else f"pixels of shape {tuple(pixels.shape)}"
            raise ValueError(
                f"{given}; this model needs B images (channels, height, width) = {self.shape}"
            )
        # (B, C, H, W) -> (B, patches, C·h·w) for patches of (h, w), row by row
        x = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        x = self.patches(F.unfold(x, self.patch, stride=self.patch).mT.contiguous())
        x = torch.cat([self.class_token.expand(x.shape[0], 1, -1), x], 1)
        x = self.positions(x, torch.arange(x.shape[1], device=x.device)[None])
        if self.norm is not None:
            x = self.norm(x)
        return self.output(self.drop(x))


def _dropout(config: ModelConfig) -> float:
    return config.dropout if config.embedding_dropout is None else config.embedding_dropout
