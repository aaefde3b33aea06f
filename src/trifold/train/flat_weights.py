"""The weights of a model that each rank has completely.

The parameters are views of one vector, in bf16 or fp32, and their gradients are views of another.
The weights are cast once per step from the master weights, and an update is a few passes over one
vector.
"""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from trifold.fast.int8 import Int8Weight
from trifold.nn import Transformer
from trifold.train.master_weights import NO_FACTORS, MasterWeights
from trifold.train.ranks import SINGLE, Ranks

CHUNK = 2**20  # elements converted and added at once


class FlatWeights(MasterWeights):
    """Owns the storage of the parameters. `master` and the gradient are equal on all ranks."""

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        ranks: Ranks = SINGLE,
        factors: Mapping[str, float] = NO_FACTORS,
    ) -> None:
        super().__init__(model, dtype, ranks, factors)
        self._compute = self.master
        if self.low_precision:
            self._compute = self.master.to(dtype)
        self._gradients: list[Tensor] = []  # of the model and its replicas
        # Allocated once; allocating a vector of this size per update fragments the memory.
        self._total = torch.zeros_like(self.master)
        self._has_gradient = False
        self._attach(model)
        for name, values in self.frozen.items():
            self._parameters[name].data = values.to(dtype)

    def _values_of(self, parameter: nn.Parameter) -> Tensor:
        return parameter.detach()

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
        parameters = {
            id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in model.parameters()
        }
        int8_weights = {
            id(module): module for module in model.modules() if isinstance(module, Int8Weight)
        }
        replica = deepcopy(model, parameters | int8_weights)
        self._attach(replica)
        return replica

    def collect(self) -> None:
        """Add the gradients of the model and its replicas to the fp32 sum, and clear them."""
        for gradient in self._gradients:
            if self._has_gradient:
                chunks = zip(self._total.split(CHUNK), gradient.split(CHUNK), strict=True)
                for total, chunk in chunks:
                    total.add_(chunk)
            else:
                self._total.copy_(gradient)
            self._has_gradient = True
            gradient.zero_()

    def take_gradient(self) -> Tensor:
        if not self._has_gradient:
            assert self._ranks.world > 1, "collect was not called"
            self._total.zero_()  # this rank had no micro-batch
        self._has_gradient = False
        self._ranks.all_reduce(self._total)
        return self._total

    def norm(self, gradient: Tensor) -> float:
        return float(torch.linalg.vector_norm(gradient))

    def publish(self, *, frozen: bool = False) -> None:
        if not self.low_precision:
            return
        self._compute.copy_(self.master)
        if frozen:
            for name, values in self.frozen.items():
                self._parameters[name].data.copy_(values)

    def to_global(self, key: str, part: Tensor) -> Tensor:
        return part

    def to_local(self, key: str, full: Tensor) -> Tensor:
        return full
