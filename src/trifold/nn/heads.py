"""Heads: hidden states -> logits.

    lm             h -> vocabulary: the next token, or a masked one
    pooler         first state -> one vector per sequence
    next-sentence  pooler's vector -> 2 classes: does the second segment follow the first?
    sequence       one state, or the mean (config.classifier_input) -> classes of the text
                   or image
    choice         one state -> one logit: of the text with one of several choices
    token          every state -> classes of the token
    span           every state -> scores of being the start and the end of the answer
    replaced       every state -> a logit: is the token a replacement of the original one?
    boundary       the states on both sides of a masked span, and a position in it -> vocabulary

Shapes: B batch, T tokens, E model width, V vocabulary, C classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.config import CoreConfig
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.inputs import Inputs
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, Linear, Residual, scaled
from trifold.nn.losses import soft_capped
from trifold.nn.norms import new_norm
from trifold.nn.parts import LogitsPart, part_of
from trifold.nn.precision import wide_dtype, widened
from trifold.nn.registry import set_classical


class LanguageModelHead(nn.Module):
    """logits = f(h) Wᵀ + b; W (V, E) may be the embedding table (Press & Wolf 2017).

    f is the identity, a scale, or norm(activation(h D + d)) as in masked language models.
    """

    def __init__(self, config: CoreConfig, weight: nn.Parameter) -> None:
        super().__init__()
        outputs, width = weight.shape
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(outputs)) if config.lm_head_bias else None
        self.dense: Linear | None = None
        if config.lm_head_transform is not None:
            self.dense = Linear(config.state_width, width, bias=config.transform_bias)
            self.activation = ACTIVATIONS[config.lm_head_transform]
            self.norm = new_norm(config, width)
        self.scale = config.logits_scale
        self.soft_cap = config.logit_soft_cap

    def features(self, hidden: Tensor) -> Tensor:
        """f(h), the input of the output projection. hidden (…, E)."""
        if self.dense is not None:
            hidden = self.norm(self.activation(self.dense(hidden)))
        return scaled(hidden, self.scale)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (…, E) -> logits (…, V) in float32, or in float64 if the model has it."""
        features = self.features(hidden)
        logits = ops.linear(features, self.weight, self.bias, wide_dtype(features))
        return soft_capped(logits, self.soft_cap)


class Pooler(nn.Module):
    """A vector per sequence: activation(first state · W + b)."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.dense = Linear(config.state_width, config.pooled_width)
        self.activation = ACTIVATIONS[config.pooler_activation]

    def forward(self, hidden: Tensor, inputs: Inputs, pooled: Tensor | None) -> Tensor:
        """hidden (B, T, E) -> (B, pooler_width)."""
        first = _at(hidden, inputs.first_columns())  # padding may be on the left
        return self.activation(self.dense(first))


class Classes(nn.Module):
    """Logits of classes: s · W + b, or activation(s · D + d) · W + b, with a norm of the activation
    if configured.

    state: what s is: the vector of the "pooler", the state of one token (a key of _COLUMNS), the
    "mean" of the states of real tokens, or that of "every" token; "mean-logits": every token, and
    the result is the mean of their logits.
    layer: a sub-layer that s passes first.
    path: adds to the logits what it computes from the features of the rows, or of all tokens if
        `state` is "every", if the inputs have some.
    """

    def __init__(
        self,
        config: CoreConfig,
        state: str,
        outputs: int,
        transform: str | None = None,
        bias: bool = True,
        layer: Residual | None = None,
    ) -> None:
        super().__init__()
        self.state = state
        self.eos_id = config.eos_id
        width = config.pooled_width if state == "pooler" else config.state_width
        self.dense: Linear | None = None
        self.norm: nn.Module | None = None
        if transform is not None:
            inner = config.d_model if width == config.stream_width else width  # joins two streams
            self.dense = Linear(width, inner, bias=config.transform_bias)
            self.activation = ACTIVATIONS[transform]
            if config.transform_norm:
                self.norm = new_norm(config, inner)
            width = inner
        self.drop = Dropout(config.head_dropout)
        self.layer = layer
        self.path: Any = None  # a module that adds to the logits
        self.out_proj = Linear(width, outputs, bias=bias)

    def forward(self, hidden: Tensor, inputs: Inputs, pooled: Tensor | None) -> Tensor:
        """hidden (B, T, E) -> (B, C), or (B, T, C) for every token, in float32, or in float64 if
        the model has it. Raises ValueError if an
        end-of-sequence token to be read is missing.
        """
        state = self.read(hidden, inputs, pooled)
        s = self.drop(state)
        if self.layer is not None:
            s = self.layer(s, onto=state)
        if self.dense is not None:
            s = self.activation(self.dense(s))
            if self.norm is not None:
                s = self.norm(s)
            s = self.drop(s)
        logits: Tensor = widened(self.out_proj(s))
        if self.state == "mean-logits":
            logits = _mean(logits, inputs)
        given = None if self.path is None else self.path.given(inputs)
        if given is not None:
            logits = logits + self.path(given).to(logits).view_as(logits)
        return logits

    def read(self, hidden: Tensor, inputs: Inputs, pooled: Tensor | None) -> Tensor:
        """s (B, E), or (B, T, E) for every token."""
        if self.state == "pooler":
            assert pooled is not None, "this head needs the pooler's vector"
            return pooled
        if self.state == "mean":
            return _mean(hidden, inputs)
        if self.reads_one_state:
            return _at(hidden, self.columns(inputs))
        return hidden

    @property
    def reads_one_state(self) -> bool:
        """Whether the state of one token of each row is read, also by the pooler."""
        return self.state == "pooler" or self.state in _COLUMNS

    def columns(self, inputs: Inputs) -> Tensor:
        """(B,) the token of each row whose state is read; not of packed rows."""
        if self.state == "pooler":
            return inputs.first_columns()
        return _COLUMNS[self.state](inputs, self.eos_id)


def _at(hidden: Tensor, columns: Tensor) -> Tensor:
    """The state of one token of each row: hidden (B, T, E), columns (B,) -> (B, E)."""
    return hidden[torch.arange(len(hidden), device=hidden.device), columns]


def _mean(x: Tensor, inputs: Inputs) -> Tensor:
    """The mean over real tokens: x (B, T, E) -> (B, E)."""
    if inputs.attend is None:
        return x.mean(1)
    real = inputs.attend[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1)


def _eos_column(inputs: Inputs, eos_id: int) -> Tensor:
    ends = inputs.tokens == eos_id
    if inputs.attend is not None:
        ends = ends & inputs.attend
    has_end = ends.any(1)
    if not bool(has_end.all()):
        row = int((~has_end).nonzero()[0])
        raise ValueError(
            f"row {row} has no end-of-sequence token ({eos_id}), whose state is read; add one"
        )
    columns = torch.arange(inputs.tokens.shape[1], device=inputs.tokens.device)
    return (columns * ends).amax(1)


_COLUMNS: dict[str, Callable[[Inputs, int], Tensor]] = {
    "first": lambda inputs, eos_id: inputs.first_columns(),
    "last": lambda inputs, eos_id: inputs.last_columns(),
    "eos": _eos_column,
}


class SpanBoundary(nn.Module):
    """f([x_left; x_right; p_position]), f being twice norm(activation(· W + b)); then the table of
    the language-model head, with its own bias (V,). The tokens on both sides of a masked span
    predict it (Joshi et al. 2020, section 3.2).
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        width = config.output_width
        self.positions = TokenEmbedding(config.boundary_positions, config.boundary_width)
        inputs = 2 * config.state_width + config.boundary_width
        self.dense = nn.ModuleList([Linear(inputs, width), Linear(width, width)])
        self.norms = nn.ModuleList([new_norm(config, width), new_norm(config, width)])
        self.activation = ACTIVATIONS[config.lm_head_transform or config.activation]
        self.bias = nn.Parameter(torch.zeros(config.output_vocab_size))

    def forward(self, left: Tensor, right: Tensor, positions: Tensor) -> Tensor:
        """left, right (M, E), positions (M,) within the span, from 0 -> (M, width of the table)."""
        x = torch.cat([left, right, self.positions(positions[None])[0]], dim=-1)
        for dense, norm in zip(self.dense, self.norms, strict=True):
            x = norm(self.activation(dense(x)))
        return x


def _sequence_classes(config: CoreConfig, outputs: int) -> Classes:
    transform = config.classifier_transform
    return Classes(config, config.classifier_input, outputs, transform, config.classifier_bias)


def _text_classes(config: CoreConfig) -> Classes:
    """Classes of a text, whose logits a part may add to."""
    head = _sequence_classes(config, config.n_labels)
    part = part_of(LogitsPart, config)
    if not part.columns(config).forms:
        head.path = part.new(config)
    return head


def _token_classes(config: CoreConfig) -> Classes:
    """Classes of each token, whose logits a part may add to."""
    head = Classes(config, "every", config.n_labels, config.token_transform)
    part = part_of(LogitsPart, config)
    if part.columns(config).forms:
        head.path = part.new(config)
    return head


def _next_sentence(config: CoreConfig) -> Classes:
    """Dropout only if the config states it for heads."""
    own = config.model_copy(update={"classifier_dropout": config.classifier_dropout or 0.0})
    return Classes(own, "pooler", 2)


def _span(config: CoreConfig) -> Classes:
    """After a feed-forward sub-layer as in a block, with residual and norm, if configured
    (BigBird).
    """
    layer = None
    if config.span_layer:
        layer = Residual(FeedForward(config), config)
    return Classes(config, "every", 2, config.token_transform, layer=layer)


set_classical(LogitsPart())
# All but lm, whose weight may be that of the embeddings: the model creates it.
HEADS: dict[str, Callable[[CoreConfig], nn.Module]] = {
    "pooler": Pooler,
    "next-sentence": _next_sentence,
    "sequence": _text_classes,
    "choice": lambda config: _sequence_classes(config, 1),
    "token": _token_classes,
    "span": _span,
    "replaced": lambda config: Classes(config, "every", 1, config.activation),
    "boundary": SpanBoundary,
}
# Heads that read chosen positions, in addition to hidden states and inputs.
NEEDS_POSITIONS = frozenset({"boundary"})
