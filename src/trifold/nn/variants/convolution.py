"""A convolution over near tokens beside the first layer of an encoder
(He et al. 2021, "DeBERTa", version 2)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from trifold.nn import formulas
from trifold.nn.cache import LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.explain import Steps
from trifold.nn.formulas import FormulaRow
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import ACTIVATIONS, Dropout
from trifold.nn.masks import Mask
from trifold.nn.norms import new_norm
from trifold.nn.parts import BlockPart, used_group
from trifold.nn.problems import Problems, defaults
from trifold.nn.stack import Block
from trifold.nn.walk import LayerInputs
from trifold.settings import Conflict, Settings


class Convolution(Settings):
    """A convolution over the embeddings of near tokens, added to the output of the first layer
    (DeBERTa v2).
    """

    kernel: int = Field(3, gt=0, lt=1024, description="tokens that it reads, an odd number")
    groups: int = Field(1, gt=0, description="groups of channels")
    activation: Literal["gelu", "relu", "silu", "tanh"] = Field("gelu", description="of its output")


class ConvolutionBlock(Block):
    """norm(Block(x) + f(drop(y))), where y_t = Σ_j W_j x_{t+j} + b with |j| ≤ k // 2, and x is 0
    outside of the text (the first layer of DeBERTa v2, He et al. 2021).
    """

    def __init__(self, config: CoreConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__(config, layer, memory_width=memory_width)
        convolution = _convolution(config)
        width = config.d_model
        self.convolution = nn.Conv1d(
            width,
            width,
            convolution.kernel,
            padding=convolution.kernel // 2,
            groups=convolution.groups,
        )
        self.drop = Dropout(config.dropout)
        self.activation = ACTIVATIONS[convolution.activation]
        self.convolved = HookPoint()
        self.norm = new_norm(config)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        return self.norm(super().forward(x, inputs, cache) + self.convolve(x, inputs.mask))

    def convolve(self, x: Tensor, mask: Mask) -> Tensor:
        """f(drop(y)): x (B, T, E), or packed (1, N, E), -> the same shape."""
        x = mask.grid(x)
        x = x if mask.keys is None else x.masked_fill(~mask.keys[..., None], 0)
        y = self.activation(self.drop(self.convolution(x.mT).mT.contiguous()))
        return self.convolved(mask.flat(y))

    def explain(self, steps: Steps, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """See `nn.explain`."""
        y = super().explain(steps, x, inputs, name)
        z = self.convolve(x, inputs.mask)
        steps.add("convolution", "f(Σ W_j x_(t+j) + b)", z, f"{name}.convolved", x=x)
        y = steps.add("residual", "x + dx", y + z, x=y, dx=z)
        return steps.norm("norm", self.norm, y, f"{name}.norm")


class ConvolutionPart(BlockPart):
    """A convolution in the first block."""

    key = "convolution"
    needs: ClassVar = {"shape": ("encoder",), "norm_placement": ("post",)}
    conflicts = "block_of_layer query_stream summary_block"
    ignores_orders = True

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        block = Block if layer else ConvolutionBlock
        return block(config, layer, memory_width=memory_width)

    def problems(self, config: CoreConfig) -> Problems:
        convolution = _convolution(config)
        if convolution.kernel % 2 == 0:
            yield f"convolution: kernel {convolution.kernel} must be odd"
        if config.d_model % convolution.groups:
            groups = convolution.groups
            yield f"convolution: groups {groups} does not divide d_model {config.d_model}"
        if config.patch_size is not None:
            yield Conflict("convolution excludes patch_size", defaults(config, self.key))
        if config.attention == "spans":
            ways = defaults(config, self.key, "attention")
            yield Conflict("convolution excludes attention: spans", ways)

    def parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        convolution = _convolution(config)
        letters = {"k": convolution.kernel, "c": config.d_model // convolution.groups}
        formula = f"k·c·E + E + {formulas.norm(config, 'E')}"
        yield FormulaRow(f"{side} convolution", formula, letters)

    def elements(self, config: CoreConfig) -> int:
        convolution = _convolution(config)
        return convolution.kernel * config.d_model**2 // convolution.groups

    def saved_once(self, config: CoreConfig, norm: int, mask: int) -> int:
        """Its input without padding, and those of its activation and its norm."""
        return 2 + norm + mask

    def phrase(self, config: CoreConfig) -> str:
        return "convolution beside the first layer"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        convolution = _convolution(config)
        yield from super().equations(config)
        function = convolution.activation
        yield f"first block:  y ← norm(block(x) + {function}(conv{convolution.kernel}(x)))"


def _convolution(config: CoreConfig) -> Convolution:
    return used_group(config, "convolution", Convolution)


PARTS = (ConvolutionPart(),)
