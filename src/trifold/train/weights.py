"""Master weights: every parameter in one flat fp32 vector, beside the vector the model computes with.

The model's parameters become views of the second vector (bf16 or the same fp32), and their gradients views of a
third. So weights are cast once a step and not once a use, the optimiser is a handful of passes over one vector,
and no activation is ever converted. In float64, which is for comparing, all of them are float64.

Several ranks each have all of this. Their gradients are one flat vector each, which they add up once an update, behind
the last micro-batch: that is what DistributedDataParallel is for, less its averaging (of ranks that may have learnt
from unlike numbers of tokens), its buckets and its hooks on a backward pass; of those workers make several at once.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from trifold.train.ranks import ALONE, Ranks

PIECE = 2**20  # elements that are converted and added at once

Model = TypeVar("Model", bound=nn.Module)


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """In what master weights are kept and gradients are summed, where `dtype` computes."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """What the model knows beside its parameters, in the type that it computes in."""
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer.to(dtype) if buffer.is_floating_point() else buffer)


class FlatWeights:
    """Owns the storage of a model's parameters. `master` and the gradient taken are (P,) fp32, alike on all ranks."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self.names = [name for name, _ in model.named_parameters()]
        parameters = list(model.parameters())
        self._sizes = [parameter.numel() for parameter in parameters]
        self._shapes = [parameter.shape for parameter in parameters]
        self.master = torch.cat([p.detach().to(wide_type(dtype)).flatten() for p in parameters])
        self.low_precision = dtype is not self.master.dtype
        self._compute = self.master.to(dtype) if self.low_precision else self.master
        self._gradients: list[Tensor] = []
        # Kept, because a vector of this size that comes and goes finds no place between what else comes and goes.
        self._total, self._collected = torch.zeros_like(self.master), False
        self._adopt(model)
        cast_buffers(model, dtype)

    def _adopt(self, model: nn.Module) -> None:
        """The model's parameters become views of the vector that is computed with; their gradients of a new one."""
        gradient = torch.zeros_like(self._compute)
        self._gradients.append(gradient)
        for parameter, values, grad in zip(
            model.parameters(), self._compute.split(self._sizes), gradient.split(self._sizes), strict=True
        ):
            parameter.data = values.view(parameter.shape)
            parameter.grad = grad.view(parameter.shape)

    def replica(self, model: Model) -> Model:
        """Another model with the same weights, not a copy of them, whose gradients are its own until `collect`."""
        shared = {id(parameter): nn.Parameter(parameter.data) for parameter in model.parameters()}
        other = deepcopy(model, shared)
        self._adopt(other)
        return other

    def collect(self) -> None:
        """Take the gradients of one micro-batch, and of every replica's, into the fp32 sum, and clear them."""
        for gradient in self._gradients:
            if self._collected:
                for total, fresh in zip(self._total.split(PIECE), gradient.split(PIECE), strict=True):
                    total.add_(fresh)
            else:
                self._total.copy_(gradient)
            self._collected = True
            gradient.zero_()

    def take_gradient(self) -> Tensor:
        """The summed gradient (P,) fp32 of all micro-batches since the last call, of all ranks; good until the next
        `collect`.
        """
        if not self._collected:
            assert self._ranks.world > 1, "no micro-batch has been collected"
            self._total.zero_()  # the other ranks had something to learn
        self._collected = False
        self._ranks.add_up(self._total)
        return self._total

    def norm(self, gradient: Tensor) -> float:
        """Of a gradient that was taken."""
        return float(torch.linalg.vector_norm(gradient))

    def publish(self) -> None:
        """Give the model the master weights, rounded once."""
        if self.low_precision:
            self._compute.copy_(self.master)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat (P,) vector cut into the model's shapes, by parameter name."""
        pieces = flat.split(self._sizes)
        return {name: p.view(s) for name, p, s in zip(self.names, pieces, self._shapes, strict=True)}

    def flat(self, named: dict[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        return torch.cat([named[name].to(self.master.dtype).flatten() for name in self.names])

    def across(self, key: str, part: Tensor) -> Tensor:
        """What the ranks' parts of it make; here each has the whole. key: NAME or KIND.NAME."""
        return part

    def own(self, key: str, whole: Tensor) -> Tensor:
        """This rank's part of a tensor that is whole; here all of it."""
        return whole
