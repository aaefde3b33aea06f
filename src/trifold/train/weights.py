"""Master weights: every parameter in one flat fp32 vector, beside the vector the model computes with.

The model's parameters become views of the second vector (bf16 or the same fp32), and their gradients views of a
third. So weights are cast once a step and not once a use, the optimiser is a handful of passes over one vector,
and no activation is ever converted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatWeights:
    """Owns the storage of a model's parameters. `master` and `gradient` are (P,) fp32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.names = [name for name, _ in model.named_parameters()]
        self._parameters = [parameter for _, parameter in model.named_parameters()]
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self.master = torch.cat([p.detach().float().flatten() for p in self._parameters])
        self.low_precision = dtype is not torch.float32
        self._compute = self.master.to(dtype) if self.low_precision else self.master
        self._gradient = torch.zeros_like(self._compute)
        self._total: Tensor | None = None
        for parameter, values, gradient in zip(
            self._parameters, self._compute.split(self._sizes), self._gradient.split(self._sizes), strict=True
        ):
            parameter.data = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
        for name, buffer in model.named_buffers():
            owner, _, last = name.rpartition(".")
            setattr(
                model.get_submodule(owner), last, buffer.to(dtype) if buffer.is_floating_point() else buffer
            )

    def collect(self) -> None:
        """Take the gradients of one micro-batch into the fp32 sum, and clear them."""
        fresh = self._gradient.float() if self.low_precision else self._gradient.clone()
        self._total = fresh if self._total is None else self._total.add_(fresh)
        self._gradient.zero_()

    def take_gradient(self) -> Tensor:
        """The summed gradient (P,) fp32 of all micro-batches since the last call."""
        assert self._total is not None, "no micro-batch has been collected"
        total, self._total = self._total, None
        return total

    def publish(self) -> None:
        """Give the model the master weights, rounded once."""
        if self.low_precision:
            self._compute.copy_(self.master)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat (P,) vector cut into the model's shapes, by parameter name."""
        pieces = flat.split(self._sizes)
        shapes = [parameter.shape for parameter in self._parameters]
        return {name: p.view(s) for name, p, s in zip(self.names, pieces, shapes, strict=True)}

    def flat(self, named: dict[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        return torch.cat([named[name].float().flatten() for name in self.names])
