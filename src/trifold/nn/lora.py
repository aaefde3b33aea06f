"""Low-rank adapters of linear layers: y = x Wᵀ + b + s · drop(x) Aᵀ Bᵀ, where A (r, in) and B (out,
r) are trained.

LoRA (Hu et al. 2021): A is Kaiming-uniform and B zero, so that y is at first that of W; s = α / r.
rsLoRA (Kalajdzievski 2023): s = α / √r. DoRA (Liu et al. 2024): each row of W + s B A is scaled to
a trained length, at first that of the row of W; its own length is a constant in the gradient
(section 4.3).
"""

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.layers import Dropout, Linear
from trifold.settings import Settings


class LoRASettings(Settings):
    """The kind of the adapters, and the layers of blocks that have one (default: q_proj, v_proj,
    kv_down).
    """

    rank: int = Field(8, ge=1)  # r
    alpha: float = Field(16.0, gt=0)  # α
    dropout: float = Field(0.0, ge=0, lt=1)  # of the input of A
    targets: tuple[str, ...] | None = Field(
        None, strict=False, min_length=1, description="patterns, as of train.freeze"
    )
    rslora: bool = False  # s = α / √r
    dora: bool = False  # train the lengths of the rows
    int8: bool = False  # store the matrices of the blocks in int8

    @property
    def scale(self) -> float:
        """The factor s."""
        if self.rslora:
            return self.alpha / math.sqrt(self.rank)
        return self.alpha / self.rank


class AdaptedLinear(Linear):
    """A linear layer to which `adapt` has added an adapter."""

    def adapt(self, settings: LoRASettings) -> None:
        """Add the parameters of the adapter."""
        self.scale = settings.scale
        self.drop = Dropout(settings.dropout)
        self.lora_A = nn.Parameter(self.weight.new_empty(settings.rank, self.weight.shape[1]))
        self.lora_B = nn.Parameter(self.weight.new_zeros(len(self.weight), settings.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.lora_magnitude = (
            nn.Parameter(self.weight.detach().norm(dim=1)) if settings.dora else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        change = ops.linear(ops.linear(self.drop(x), self.lora_A), self.lora_B) * self.scale
        if self.lora_magnitude is None:
            return ops.linear(x, self.weight, self.bias) + change
        with torch.no_grad():
            rows = torch.arange(len(self.weight), device=x.device)
            dense = F.embedding(rows, self.weight)  # also of a quantized matrix
            lengths = adapted(dense, self.lora_A, self.lora_B, self.scale).norm(dim=1)
        y = (ops.linear(x, self.weight) + change) * (self.lora_magnitude / lengths).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias
        return y


def adapted(
    weight: Tensor, a: Tensor, b: Tensor, scale: float, magnitude: Tensor | None = None
) -> Tensor:
    """The matrix (out, in) of the ordinary layer that equals one with an adapter."""
    weight = weight + scale * b @ a
    if magnitude is None:
        return weight
    return weight * (magnitude / weight.norm(dim=1))[:, None]


def merge(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The parameters of the ordinary model that equals one with adapters."""
    merged = {name: weight for name, weight in weights.items() if ".lora_" not in name}
    for part in [name.removesuffix("lora_B") for name in weights if name.endswith(".lora_B")]:
        a, b, magnitude = (weights.get(f"{part}lora_{name}") for name in ("A", "B", "magnitude"))
        merged[f"{part}weight"] = adapted(merged[f"{part}weight"], a, b, scale, magnitude)  # type: ignore[arg-type]
    return merged
