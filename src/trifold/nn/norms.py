"""Norms of the last dimension. Each describes itself to what counts, draws and explains models.

layer     (x − mean) / √(variance + ε) · weight + bias                      (Ba et al. 2016)
rms       x / √(mean(x²) + ε) · weight                   (Zhang & Sennrich 2019, equation 4)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.config import CoreConfig
from trifold.nn.hooks import Hookable
from trifold.nn.precision import widened


class Norm(Hookable, ABC):
    """A norm over `width` elements (default: d_model).

    label: its name for people. saved: the tensors of its width that training keeps of it for the
    backward pass.
    """

    label: ClassVar[str]
    saved: ClassVar[int]

    def __init__(self, config: CoreConfig, width: int | None = None) -> None:
        super().__init__()
        self.width = width or config.d_model
        self.epsilon = config.norm_epsilon

    @staticmethod
    @abstractmethod
    def parameters_of(config: CoreConfig, letter: str) -> str:
        """The formula of its number of parameters; the letter stands for its width."""

    @abstractmethod
    def reset(self) -> None:
        """Set the parameters to those of a new model."""

    @abstractmethod
    def equation(self, x: Tensor) -> tuple[str, dict[str, Tensor]]:
        """Its formula, and the statistics in it of one row x (width)."""


class LayerNorm(Norm):
    """(x − mean) / √(variance + ε) · weight + bias (Ba et al. 2016)."""

    label = "layer norm"
    saved = 1

    def __init__(self, config: CoreConfig, width: int | None = None) -> None:
        super().__init__(config, width)
        self.weight = nn.Parameter(torch.ones(self.width))
        self.bias = nn.Parameter(torch.zeros(self.width)) if config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon)

    @staticmethod
    def parameters_of(config: CoreConfig, letter: str) -> str:
        return f"2·{letter}" if config.norm_bias else letter

    @torch.no_grad()
    def reset(self) -> None:
        self.weight.fill_(1)
        if self.bias is not None:
            self.bias.fill_(0)

    def equation(self, x: Tensor) -> tuple[str, dict[str, Tensor]]:
        formula = "(x − mean) / √(var + ε) · weight"
        if self.bias is not None:
            formula += " + bias"
        return formula, {"mean": x.mean(), "var": x.var(correction=0)}


class RMSNorm(Norm):
    """x / √(mean(x²) + ε) · weight (Zhang & Sennrich 2019, equation 4).

    The factor may be 1 + weight, as in Gemma, or 1.
    """

    label = "RMS norm"
    saved = 2

    def __init__(self, config: CoreConfig, width: int | None = None) -> None:
        super().__init__(config, width)
        has_weight = config.norm_weight != "none"
        self.weight = nn.Parameter(torch.ones(self.width)) if has_weight else None
        self.offset = float(config.norm_weight == "plus-one")

    def forward(self, x: Tensor) -> Tensor:
        if not self.offset:
            return F.rms_norm(x, (self.width,), self.weight, self.epsilon)
        # In bf16, 1 + weight would lose most bits of the weight.
        return F.rms_norm(widened(x), (self.width,), self.factor, self.epsilon).to(x.dtype)

    @property
    def factor(self) -> Tensor:
        """(E,) the factor of the normalized x, in at least fp32."""
        assert self.weight is not None
        return widened(self.weight) + self.offset

    @staticmethod
    def parameters_of(config: CoreConfig, letter: str) -> str:
        return "0" if config.norm_weight == "none" else letter

    @torch.no_grad()
    def reset(self) -> None:
        if self.weight is not None:
            self.weight.fill_(1 - self.offset)

    def equation(self, x: Tensor) -> tuple[str, dict[str, Tensor]]:
        formula = "x / √(mean x² + ε)"
        if self.offset:
            formula += " · (1 + weight)"
        elif self.weight is not None:
            formula += " · weight"
        return formula, {"mean x²": x.square().mean()}


NORMS: dict[str, type[Norm]] = {"layer": LayerNorm, "rms": RMSNorm}


def new_norm(config: CoreConfig, width: int | None = None) -> Norm:
    """A norm of the configured kind over `width` elements (default: d_model)."""
    return norm_of(config)(config, width)


def norm_of(config: CoreConfig) -> type[Norm]:
    """The kind of norm of a config."""
    return NORMS[config.norm]
