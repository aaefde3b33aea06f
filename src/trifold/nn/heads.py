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

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.config import CoreConfig
from trifold.nn.embeddings import Inputs, TokenEmbedding
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, Linear, Residual, new_norm


class LanguageModelHead(nn.Module):
    """logits = f(h) Wᵀ + b; W (V, E) may be the embedding table (Press & Wolf 2017).

    f is the identity, a scale, or norm(activation(h D + d)) as in masked language models.
    """

    def __init__(self, config: CoreConfig, weight: nn.Parameter) -> None:
        super().__init__()
        width = weight.shape[1]
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(weight.shape[0])) if config.lm_head_bias else None
        transform = config.lm_head_transform
        self.dense = (
            Linear(config.state_width, width, bias=config.transform_bias) if transform else None
        )
        self.activation = ACTIVATIONS[transform] if transform else None
        self.norm = new_norm(config, width) if transform else None
        self.scale, self.soft_cap = config.logits_scale, config.logit_soft_cap

    def features(self, hidden: Tensor) -> Tensor:
        """f(h), the input of the output projection. hidden (…, E)."""
        if self.dense is not None and self.activation is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.dense(hidden)))
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (…, E) -> logits (…, V) in float32."""
        logits = ops.linear(self.features(hidden), self.weight, self.bias, torch.float32)
        return (
            logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)
        )


class Pooler(nn.Module):
    """A vector per sequence: activation(first state · W + b)."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.dense = Linear(config.state_width, config.pooler_width or config.d_model)
        self.activation = ACTIVATIONS[config.pooler_activation]

    def forward(self, hidden: Tensor, inputs: Inputs, pooled: Tensor | None) -> Tensor:
        """hidden (B, T, E) -> (B, pooler_width)."""
        rows = torch.arange(len(hidden), device=hidden.device)
        return self.activation(
            self.dense(hidden[rows, inputs.first_columns()])
        )  # padding may be on the left


class Classes(nn.Module):
    """Logits of classes: s · W + b, or activation(s · D + d) · W + b, with a norm of the activation
    if configured.

    state: what s is: the vector of the "pooler", the state of one token (a key of _COLUMNS), the
    "mean" of the states of real tokens, or that of "every" token; "mean-logits": every token, and
    the result is the mean of their logits; "span": every token, if configured after a feed-forward
    sub-layer as in a block, with residual and norm (BigBird).
    """

    def __init__(
        self,
        config: CoreConfig,
        state: str,
        outputs: int,
        transform: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.state, self.eos_id = state, config.eos_id
        width = (config.pooler_width or config.d_model) if state == "pooler" else config.state_width
        inner = (
            config.d_model if transform and width == config.stream_width else width
        )  # joins two streams
        self.dense = Linear(width, inner, bias=config.transform_bias) if transform else None
        self.activation = ACTIVATIONS[transform] if transform else None
        self.norm = new_norm(config, inner) if transform and config.transform_norm else None
        self.drop = Dropout(_dropout(config))
        self.layer = (
            Residual(FeedForward(config), config) if state == "span" and config.span_layer else None
        )
        self.out_proj = Linear(inner, outputs, bias=bias)

    def forward(self, hidden: Tensor, inputs: Inputs, pooled: Tensor | None) -> Tensor:
        """hidden (B, T, E) -> (B, C), or (B, T, C) for every token. Raises ValueError if an
        end-of-sequence token to be read is missing.
        """
        if self.state == "pooler":
            assert pooled is not None, "this head needs the pooler's vector"
            hidden = pooled
        elif self.state == "mean":
            hidden = _mean(hidden, inputs)
        elif self.state in _COLUMNS:
            column = _COLUMNS[self.state](inputs, self.eos_id)
            hidden = hidden[torch.arange(len(hidden), device=hidden.device), column]
        hidden = (
            self.drop(hidden) if self.layer is None else self.layer(self.drop(hidden), onto=hidden)
        )
        if self.dense is not None and self.activation is not None:
            hidden = self.activation(self.dense(hidden))
            hidden = self.drop(hidden if self.norm is None else self.norm(hidden))
        logits: Tensor = self.out_proj(hidden)
        return _mean(logits.float(), inputs) if self.state == "mean-logits" else logits.float()


def _mean(x: Tensor, inputs: Inputs) -> Tensor:
    """The mean over real tokens: x (B, T, E) -> (B, E)."""
    if inputs.attend is None:
        return x.mean(1)
    real = inputs.attend[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1)


def _eos_column(inputs: Inputs, eos_id: int) -> Tensor:
    ends = inputs.tokens == eos_id
    ends = ends if inputs.attend is None else ends & inputs.attend
    if not bool(ends.any(1).all()):
        row = int((~ends.any(1)).nonzero()[0])
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
        tied = config.tie_lm_head or config.lm_head_transform is not None
        width = config.embedding_width if tied else config.state_width
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


def _dropout(config: CoreConfig) -> float:
    return config.dropout if config.classifier_dropout is None else config.classifier_dropout


def _sequence_classes(config: CoreConfig, outputs: int) -> Classes:
    transform = config.classifier_transform
    return Classes(config, config.classifier_input, outputs, transform, config.classifier_bias)


# All but lm, whose weight may be that of the embeddings: the model creates it.
HEADS: dict[str, Callable[[CoreConfig], nn.Module]] = {
    "pooler": Pooler,
    "next-sentence": lambda config: Classes(
        config.model_copy(update={"classifier_dropout": config.classifier_dropout or 0.0}),
        "pooler",
        2,
    ),
    "sequence": lambda config: _sequence_classes(config, config.n_labels),
    "choice": lambda config: _sequence_classes(config, 1),
    "token": lambda config: Classes(config, "every", config.n_labels, config.token_transform),
    "span": lambda config: Classes(config, "span", 2, config.token_transform),
    "replaced": lambda config: Classes(config, "every", 1, config.activation),
    "boundary": SpanBoundary,
}
# Heads that read chosen positions, in addition to hidden states and inputs.
NEEDS_POSITIONS = frozenset({"boundary"})
