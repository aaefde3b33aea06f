"""The small parts: dropout, norm, feed-forward, and the residual wiring around every sub-layer.

post      LayerNorm(x + Sublayer(x))                 (Vaswani et al. 2017)
pre       x + Sublayer(LayerNorm(x))                 (GPT-2; a final norm closes the stack)
sandwich  x + LayerNorm(Sublayer(LayerNorm(x)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.fast import kernels
from trifold.nn.config import ModelConfig
from trifold.nn.linear import Linear, fused


class Dropout(nn.Module):
    """Zeroes each element with probability p and scales the rest to keep the expectation (Srivastava et al. 2014).

    On a CPU the random numbers would cost more than the model's smaller products. The compiled loops hash them from
    one drawn seed; without the loops eight bytes are drawn at a time, p is taken to the nearest 1/256, and the scale
    is that of the probability really used.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    @property
    def active(self) -> bool:
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        if kernels.compiled(x) is not None:
            return kernels.dropped(x, self.p)
        return x * keep_mask(x, self.p) if _cheaply(x) else F.dropout(x, self.p)

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """x + drop(y), in one pass where there is something to drop."""
        if self.active and kernels.compiled(y) is not None:
            return kernels.added_dropped(x, y, self.p)
        if self.active and _cheaply(x):
            return torch.addcmul(x, y, keep_mask(y, self.p))
        return x + self(y)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _cheaply(x: Tensor) -> bool:
    """Whether random numbers are to be spared; a graph draws its own where it uses them."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def keep_mask(like: Tensor, p: float) -> Tensor:
    """Same shape and dtype as `like`: 0 with probability p (to the nearest 1/256), else 1 / (1 - p)."""
    threshold = min(max(round(p * 256), 1), 255)
    words = torch.empty((like.numel() + 7) // 8, dtype=torch.int64)
    words.random_(-(2**63), None, generator=kernels.own_generator())
    drawn = words.view(torch.uint8)[: like.numel()].view(like.shape)
    return drawn.to(like.dtype).ge_(threshold).mul_(256 / (256 - threshold))


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + ε) · weight + bias, over the width (Ba et al. 2016)."""

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width or config.d_model))
        self.bias = nn.Parameter(torch.zeros(width or config.d_model)) if config.norm_bias else None
        self.epsilon = config.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None and kernels.compiled(x) is not None:
            return kernels.layer_norm(x, self.weight, self.bias, self.epsilon)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) · weight, over the width (Zhang & Sennrich 2019, equation 4)."""

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width or config.d_model))
        self.epsilon = config.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 x), the cheap approximation (Hendrycks & Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks & Gimpel 2016, section 2)."""
    return kernels.gelu_tanh(x) if kernels.compiled(x) is not None else F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,
    "quick-gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}

# Activations that for their own way back keep what they give.
KEPT_ANYWAY = frozenset({"relu", "tanh"})

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


def new_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """A norm of the config's kind, over d_model or another width."""
    return NORMS[config.norm](config, width)


class FeedForward(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂, the same for every position (Vaswani et al. 2017, equation 2).

    Gated: (activation(x W_g + b_g) ∘ (x W₁ + b₁)) W₂ + b₂ (Shazeer 2020, equation 6).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.in_proj = Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias)
        self.gate_proj = (
            Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias) if config.gated else None
        )
        self.out_proj = Linear(config.d_ff, config.d_model, bias=config.feed_forward_bias)
        self.named, self.activation = config.activation, ACTIVATIONS[config.activation]
        self.drop = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        if self.gate_proj is None:
            inner: tuple[Tensor, ...] = (self.in_proj(x),)
        else:
            inner = fused(x, (self.gate_proj, self.in_proj))
        if self.drop.active or (self.named in KEPT_ANYWAY and self.gate_proj is None):
            return self.out_proj(self.drop(self._activated(*inner)))
        return self.out_proj.of(self._activated, *inner)

    def _activated(self, x: Tensor, *gated: Tensor) -> Tensor:
        """activation(x), times what it is the gate of."""
        x = self.activation(x)
        return x * gated[0] if gated else x


class Residual(nn.Module):
    """after(x + drop(exit(sublayer(enter(x))))): where the norms stand is a matter of three parts."""

    # placement -> has a norm at (enter, exit, after)
    PLACEMENTS: ClassVar = {"pre": (1, 0, 0), "post": (0, 0, 1), "sandwich": (1, 1, 0)}

    def __init__(self, sublayer: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        self.enter, self.exit, self.after = (
            new_norm(config) if here else nn.Identity() for here in self.PLACEMENTS[config.norm_placement]
        )
        self.sublayer = sublayer
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, *inputs: Any, **named: Any) -> Tensor:
        """x (B, T, E) -> (B, T, E); the rest goes to the sub-layer."""
        return self.after(self.drop.added(x, self.exit(self.sublayer(self.enter(x), *inputs, **named))))
