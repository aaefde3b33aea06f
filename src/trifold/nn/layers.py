"""Linear layers, dropout, feed-forward networks, and the residual connection around every
sub-layer.

post      LayerNorm(x + Sublayer(x))                 (Vaswani et al. 2017)
pre       x + Sublayer(LayerNorm(x))                 (GPT-2; a final norm closes the stack)
sandwich  x + LayerNorm(Sublayer(LayerNorm(x)))      (Gemma 2)
exit      x + LayerNorm(Sublayer(x))                 (OLMo 2)
"""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.config import CoreConfig
from trifold.nn.hooks import Hookable, HookPoint
from trifold.nn.norms import new_norm
from trifold.nn.parts import FeedForwardPart
from trifold.nn.registry import set_classical


class Linear(nn.Module):
    """y = x Wᵀ + b: weight (out, in), bias (out,) or None."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        sizes = f"{inputs} -> {outputs}"
        if self.bias is None:
            return f"{sizes}, no bias"
        return sizes


class Dropout(nn.Module):
    """Zeroes each element with probability p and scales the rest to keep the expectation
    (Srivastava et al. 2014).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p) if self.active else x

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + drop(y)."""
        return ops.dropout(y, self.p, x) if self.active else x + y

    def extra_repr(self) -> str:
        return f"p={self.p}"


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor · x; x itself if the factor is 1."""
    return x if factor == 1 else x * factor


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 x), an approximation of GELU (Hendrycks & Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021, "Primer"
    "gelu": F.gelu,
    "gelu-tanh": lambda x: ops.gelu_tanh(x),  # noqa: PLW0108 (the installed version)
    "quick-gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂ at every position (Vaswani et al. 2017, equation 2).

    Gated: (activation(x W_g + b_g) ∘ (x W₁ + b₁)) W₂ + b₂ (Shazeer 2020, equation 6). With a limit
    c, the factors are activation(min(·, c)) and 1 + clamp(·, −c, c), as in gpt-oss (OpenAI 2025).
    The hook point `inner` (B, T, d_ff) is the factor of W₂.
    """

    watched = False

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        width = config.d_model
        inner = config.d_ff
        bias = config.feed_forward_bias
        self.in_proj = Linear(width, inner, bias=bias)
        self.gate_proj = Linear(width, inner, bias=bias) if config.gated else None
        self.out_proj = Linear(inner, width, bias=bias)
        self.activation_name = config.activation
        self.activation = ACTIVATIONS[config.activation]
        self.limit = config.gate_limit
        self.drop = Dropout(config.activation_dropout)
        self.inner = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        return ops.feed_forward(self, x)

    def transform(self, x: Tensor) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        y, gated = self.factors(x)
        if not (self.drop.active or self.watched):
            return ops.activation_linear(self.out_proj, self.activation, y, gated)
        y = self.activation(y)
        if gated is not None:
            y = y * gated
        return self.out_proj(self.inner(self.drop(y)))

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, d_ff) the input of the activation, and what multiplies its output."""
        if self.gate_proj is None:
            return self.in_proj(x), None
        y, gated = ops.linears(x, (self.gate_proj, self.in_proj))
        if self.limit is not None:
            y = y.clamp(max=self.limit)
            gated = gated.clamp(-self.limit, self.limit) + 1
        return y, gated


class NetworkPart(FeedForwardPart):
    """The network of the paper, or a gated one."""

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return FeedForward(config)

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        return None


set_classical(NetworkPart())


class Residual(Hookable):
    """after(x + drop(scale · exit(sublayer(enter(x))))): the placement decides which of these are
    norms.

    The hook point `output` is what is added to x.
    """

    # enter, exit, after
    PLACEMENTS: ClassVar = {
        "pre": (1, 0, 0),
        "post": (0, 0, 1),
        "sandwich": (1, 1, 0),
        "exit": (0, 1, 0),
    }

    def __init__(self, sublayer: nn.Module, config: CoreConfig) -> None:
        super().__init__()
        self.enter, self.exit, self.after = (
            new_norm(config) if has_norm else nn.Identity()
            for has_norm in self.PLACEMENTS[config.norm_placement]
        )
        self.sublayer = sublayer
        self.output = HookPoint()
        self.drop = Dropout(config.dropout)
        self.scale = config.residual_scale

    def forward(self, x: Tensor, *args: Any, onto: Tensor | None = None, **kwargs: Any) -> Tensor:
        """x (B, T, E) -> (B, T, E); other arguments are for the sub-layer. onto: what is added to,
        if not x.
        """
        y = self.exit(self.sublayer(self.enter(x), *args, **kwargs))
        y = scaled(y, self.scale)
        if self.watched:
            y = self.output(y)
        if onto is None:
            onto = x
        return self.after(self.drop.add(onto, y))
