"""The weights of training: all parameters in one vector.

The parameters are views of one vector, in bf16 or fp32, and their gradients are views of another.
The optimizer works on fp32 master weights in a third vector, so weights are cast once per step and
an update is a few passes over one vector. In float64, which is for comparisons, all vectors are
float64.
"""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from trifold.fast.int8 import Int8Weight
from trifold.nn import Transformer
from trifold.train.device import master_dtype
from trifold.train.ranks import SINGLE, Ranks

CHUNK = 2**20  # elements converted and added at once


class FlatWeights:
    """Owns the storage of the parameters. `master` and the gradient are (P,) fp32, equal on all
    ranks.

    frozen: fp32 values of the parameters without gradient, which are not in these vectors. factors:
    of the learning rate, by name, where they are not 1.
    """

    factors: Mapping[str, float] = {}

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks = SINGLE) -> None:
        self._ranks = ranks
        wide = master_dtype(dtype)
        self._parameters = dict(model.named_parameters())
        self._dtype = dtype
        self.names = [
            name for name, parameter in self._parameters.items() if parameter.requires_grad
        ]
        self.frozen = {
            n: self._own(p).to(wide) for n, p in self._parameters.items() if not p.requires_grad
        }
        parts = [self._own(self._parameters[name]) for name in self.names]
        self._sizes = [part.numel() for part in parts]
        self._shapes = [part.shape for part in parts]
        self.master = torch.cat([part.to(wide).flatten() for part in parts])
        self.low_precision = dtype is not self.master.dtype
        self._take_over(model)
        cast_buffers(model, dtype)

    def _own(self, parameter: Tensor) -> Tensor:
        """The values of a parameter that this rank has."""
        return parameter.detach()

    def _take_over(self, model: nn.Module) -> None:
        """Give the model new weights and gradients to compute with."""
        self._compute = self.master.to(self._dtype) if self.low_precision else self.master
        self._gradients: list[Tensor] = []
        # Allocated once; allocating a vector of this size per update fragments the memory.
        self._total = torch.zeros_like(self.master)
        self._has_gradient = False
        self._attach(model)
        for name, values in self.frozen.items():
            self._parameters[name].data = values.to(self._dtype)

    def _attach(self, model: nn.Module) -> None:
        """Make the parameters views of the compute weights and their gradients views of a new
        vector.
        """
        gradient = torch.zeros_like(self._compute)
        self._gradients.append(gradient)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        views = zip(
            trained, self._compute.split(self._sizes), gradient.split(self._sizes), strict=True
        )
        for parameter, values, grad in views:
            parameter.data = values.view(parameter.shape)
            parameter.grad = grad.view(parameter.shape)

    def replicate(self, model: Transformer) -> Transformer:
        """Another model that shares the weights and has its own gradients until `collect`."""
        shared = {
            id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in model.parameters()
        }
        weights = {
            id(module): module for module in model.modules() if isinstance(module, Int8Weight)
        }
        replica = deepcopy(model, shared | weights)
        self._attach(replica)
        return replica

    def collect(self) -> None:
        """Add the gradients of the model and its replicas to the fp32 sum, and clear them."""
        for gradient in self._gradients:
            if self._has_gradient:
                for total, chunk in zip(
                    self._total.split(CHUNK), gradient.split(CHUNK), strict=True
                ):
                    total.add_(chunk)
            else:
                self._total.copy_(gradient)
            self._has_gradient = True
            gradient.zero_()

    def take_gradient(self) -> Tensor:
        """The gradient (P,) fp32 of all ranks since the last call; valid until the next
        `collect`.
        """
        if not self._has_gradient:
            assert self._ranks.world > 1, "collect was not called"
            self._total.zero_()  # this rank had no micro-batch
        self._has_gradient = False
        self._ranks.all_reduce(self._total)
        return self._total

    def norm(self, gradient: Tensor) -> float:
        """The norm of a gradient from `take_gradient`."""
        return float(torch.linalg.vector_norm(gradient))

    def publish(self, *, frozen: bool = False) -> None:
        """Copy the master weights, and the frozen ones if they have changed, rounded once, to the
        model.
        """
        if self.low_precision:
            self._compute.copy_(self.master)
            for name, values in self.frozen.items() if frozen else ():
                self._parameters[name].data.copy_(values)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat (P,) vector in the shapes of the parameters, by name."""
        parts = flat.split(self._sizes)
        return {name: p.view(s) for name, p, s in zip(self.names, parts, self._shapes, strict=True)}

    def complete(self, flat: Tensor) -> dict[str, Tensor]:
        """`named(flat)` and the frozen parameters."""
        return self.named(flat) | self.frozen

    def to_global(self, key: str, part: Tensor) -> Tensor:
        """The tensor of all ranks from the part of this rank. key: PARAMETER or KIND.PARAMETER."""
        return part

    def to_local(self, key: str, full: Tensor) -> Tensor:
        """The part of this rank from a full tensor."""
        return full


def cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert floating-point buffers to the type of the computation, except for the scales of int8
    weights.
    """
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        if buffer.is_floating_point() and not isinstance(
            module := model.get_submodule(owner), Int8Weight
        ):
            setattr(module, last, buffer.to(dtype))
