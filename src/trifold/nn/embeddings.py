"""Embeddings: x_t = E[w_t]·√d_model + position, then dropout (Vaswani et al. 2017, sections 3.4 and
5.4).

Extensions: an embedding of the segment and a norm (Devlin et al. 2019), a narrower table with a
projection to d_model (Lan et al. 2020).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.config import CoreConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.inputs import Inputs
from trifold.nn.layers import Dropout, Linear
from trifold.nn.norms import new_norm
from trifold.nn.parts import EmbeddingsPart, PositionsPart, ScoresPart, part_of
from trifold.nn.registry import set_classical


class _Lookup(torch.autograd.Function):
    """Rows of a table. The backward pass sums in fp32: in bf16 gradients of frequent tokens would
    be rounded away.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows = weight.shape[0]
        ctx.dtype = weight.dtype
        return ops.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,), gradient = ctx.saved_tensors, gradients[0]
        rows = gradient.reshape(-1, gradient.shape[-1])
        if rows.dtype is not torch.float64:
            rows = rows.float()
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

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_token_types, config.sum_width))

    def forward(self, segments: Tensor | None) -> Tensor:
        """(B, T) -> (B, T, E); without segments the embedding of the first kind (E,)."""
        if segments is None:
            return self.weight[0]
        return _Lookup.apply(self.weight, segments)  # type: ignore[no-untyped-call]


class Embeddings(nn.Module):
    """Scaled tokens plus positions and segments; norm; dropout; projection. Stacks may share the
    token table.

    The projection may be that of the tokens only, without bias (Zhang et al. 2022, "OPT", 350m).
    `output` is the hook point of the result.
    """

    def __init__(self, config: CoreConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = part_of(PositionsPart, config).new(config)
        self.token_types = TokenTypes(config) if config.n_token_types else None
        self.norm = new_norm(config, config.sum_width) if config.embedding_norm else None
        self.drop = Dropout(embedding_dropout(config))
        self.projects_tokens = config.token_projection
        widths = (config.embedding_width, config.d_model)
        projects = config.has_embedding_projection
        self.projection = Linear(*widths, bias=not self.projects_tokens) if projects else None
        self.output = HookPoint("state")
        self.scale = config.embedding_factor
        self.rounds_scale = config.embedding_scale_rounded
        self.max_positions = config.max_positions
        # Generation respects max_positions also where nothing else does.
        scores = part_of(ScoresPart, config)
        self.is_limited = config.learned_positions or scores.is_limited
        self.uses_segments = config.n_token_types > 0 or scores.reads_segments(config)

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, T, E); `start` is the length of the cache, which counts padding.

        Raises ValueError for a position beyond max_positions, and for segments and matches if the
        model does not use them.
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
        x = self.marked(x, inputs)
        if self.norm is not None:
            x = self.norm(x)
        x = self.drop(x)
        if self.projection is not None and not self.projects_tokens:
            x = self.projection(x)
        return self.output(x)

    def marked(self, x: Tensor, inputs: Inputs) -> Tensor:
        """x (B, T, E) with what else a variant adds; here nothing. Raises ValueError for matches,
        which the model does not use.
        """
        if inputs.matches is not None:
            raise ValueError("this model does not use matches (word_matches); leave them out")
        return x

    def _scaled(self, x: Tensor) -> Tensor:
        """x (…, E) times the factor, which may be rounded to the precision of x, as in Gemma: in
        bf16 √3072 is 55.5.
        """
        if self.scale == 1.0:
            return x
        if self.rounds_scale:
            return x * x.new_full((), self.scale)
        return x * self.scale

    def _check_length(self, inputs: Inputs, positions: Tensor, start: int) -> None:
        longest = start + inputs.packing.width(inputs.tokens.shape[1])
        # Positions are read only where they may decide, because reading waits for a device.
        is_padded = inputs.attend is not None and longest > self.max_positions
        if is_padded or inputs.positions is not None:
            longest = int(positions.max()) + 1
        if longest > self.max_positions:
            raise ValueError(
                f"{longest} tokens exceed max_positions = {self.max_positions}; "
                "shorten the text or use a model with more positions"
            )


def embedding_dropout(config: CoreConfig) -> float:
    """The probability of dropout on the sum of the embeddings."""
    return config.dropout if config.embedding_dropout is None else config.embedding_dropout


def default_segments(config: CoreConfig, inputs: Inputs) -> Tensor | None:
    """(B, T) segments, packed (1, N); by default 1 after the first separator, or else after the
    first token.
    """
    separator = config.separator_id
    if separator is None or inputs.segments is not None or config.n_token_types < 2:
        return inputs.segments
    tokens = inputs.grid().tokens
    is_separator = tokens == separator
    if inputs.attend is not None:
        is_separator = is_separator & inputs.attend
    first = is_separator.int().argmax(1).maximum(inputs.first_columns())
    after = torch.arange(tokens.shape[1], device=tokens.device) > first[:, None]
    return inputs.packing.flat(after[..., None].long())[..., 0]


class TokensPart(EmbeddingsPart):
    """Embeddings of tokens."""

    def new(self, config: CoreConfig, tokens: TokenEmbedding | None) -> nn.Module:
        assert tokens is not None, "embeddings of tokens need a table"
        return Embeddings(config, tokens)


set_classical(TokensPart())
