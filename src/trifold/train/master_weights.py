"""The fp32 master weights, which the optimizer changes: all trained parameters of a rank in one
vector.

`flat_weights.py` computes with a copy of them, `sharding.py` with parts on several ranks. In
float64, which is for comparisons, all vectors are float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from trifold.fast.int8 import Int8Weight
from trifold.train.device import master_dtype
from trifold.train.ranks import Ranks

NO_FACTORS: Mapping[str, float] = MappingProxyType({})


class MasterWeights(ABC):
    """`master` (P,) fp32, and how gradients come from the model and new weights go to it.

    names: of the trained parameters. frozen: fp32 values of the parameters without gradient, which
    are not in the vector. factors: of the learning rate, by name, where they are not 1.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, ranks: Ranks, factors: Mapping[str, float]
    ) -> None:
        wide = master_dtype(dtype)
        self.factors = factors
        self._ranks = ranks
        self._parameters = dict(model.named_parameters())
        self.names: list[str] = []
        self.frozen: dict[str, Tensor] = {}
        trained: list[Tensor] = []
        for name, parameter in self._parameters.items():
            values = self._values_of(parameter)
            if parameter.requires_grad:
                self.names.append(name)
                trained.append(values)
            else:
                self.frozen[name] = values.to(wide)
        self._sizes = [values.numel() for values in trained]
        self._shapes = [values.shape for values in trained]
        self.master = torch.cat([values.to(wide).flatten() for values in trained])
        self.low_precision = dtype is not self.master.dtype
        cast_buffers(model, dtype)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat (P,) vector in the shapes of the parameters, by name."""
        parts = zip(self.names, flat.split(self._sizes), self._shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def complete(self, flat: Tensor) -> dict[str, Tensor]:
        """`named(flat)` and the frozen parameters."""
        return self.named(flat) | self.frozen

    @abstractmethod
    def _values_of(self, parameter: nn.Parameter) -> Tensor:
        """The values of a parameter that this rank has."""

    @abstractmethod
    def collect(self) -> None:
        """Add the gradients of a group of micro-batches to the sum of an update."""

    @abstractmethod
    def take_gradient(self) -> Tensor:
        """The gradient (P,) fp32 of all ranks since the last call; valid until the next
        `collect`.
        """

    @abstractmethod
    def norm(self, gradient: Tensor) -> float:
        """The norm of a gradient from `take_gradient`, over all ranks."""

    @abstractmethod
    def publish(self, *, frozen: bool = False) -> None:
        """Copy the master weights, and the frozen ones if they have changed, rounded once, to the
        model.
        """

    @abstractmethod
    def to_global(self, key: str, part: Tensor) -> Tensor:
        """The tensor of all ranks from the part of this rank. key: PARAMETER or KIND.PARAMETER."""

    @abstractmethod
    def to_local(self, key: str, full: Tensor) -> Tensor:
        """The part of this rank from a full tensor."""


def cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert floating-point buffers to the type of the computation, except for the scales of int8
    weights.
    """
    for name, buffer in model.named_buffers():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        if buffer.is_floating_point() and not isinstance(module, Int8Weight):
            setattr(module, attribute, buffer.to(dtype))
