"""Weights and gradients sharded over the ranks: each has a part of every parameter and of its
optimizer state.

Full parameters exist only while a block computes (FSDP2: Zhao et al. 2023, after ZeRO: Rajbhandari
et al. 2020).
"""

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trifold.nn import Transformer
from trifold.nn.stack import Stack
from trifold.train.device import Machine, master_dtype
from trifold.train.master_weights import NO_FACTORS, MasterWeights
from trifold.train.ranks import Ranks

# Methods that compute with the parameters of a block or of the model, beside `forward`.
SECOND_FORWARDS = ("attend_to", "query_states")


class ShardedWeights(MasterWeights):
    """The local part of each parameter. `master` and the gradient are flat vectors of these parts;
    FSDP owns what the model computes with.
    """

    def __init__(
        self, model: Transformer, machine: Machine, factors: Mapping[str, float] = NO_FACTORS
    ) -> None:
        _shard(model, machine)
        super().__init__(model, machine.dtype, machine.ranks, factors)

    def _values_of(self, parameter: nn.Parameter) -> Tensor:
        return _local(parameter)

    def collect(self) -> None:
        """Nothing to do: FSDP sums the gradients of each micro-batch over the ranks."""

    def take_gradient(self) -> Tensor:
        parts = []
        for name, size in zip(self.names, self._sizes, strict=True):
            parameter = self._parameters[name]
            if parameter.grad is None:
                parts.append(self.master.new_zeros(size))
            else:
                parts.append(_local(parameter.grad).flatten())
            parameter.grad = None
        return torch.cat(parts)

    def norm(self, gradient: Tensor) -> float:
        local = float(torch.linalg.vector_norm(gradient))
        total: float = self._ranks.sum([local * local])[0] ** 0.5
        return total

    @torch.no_grad()
    def publish(self, *, frozen: bool = False) -> None:
        for name, part in self.named(self.master).items():
            _local(self._parameters[name]).copy_(part)

    def to_global(self, key: str, part: Tensor) -> Tensor:
        """A distributed tensor; its parts are not gathered yet."""
        from torch.distributed.tensor import DTensor

        like = self._parameter_of(key)
        if like is None:  # equal on all ranks
            return part
        return DTensor.from_local(
            part,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def to_local(self, key: str, full: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        like = self._parameter_of(key)
        if like is None:
            return full
        full = full.to(self.master.device)
        return _local(
            distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
        )

    def _parameter_of(self, key: str) -> Any:
        return self._parameters.get(key, self._parameters.get(key.partition(".")[2]))


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is distributed over the ranks."""
    return hasattr(tensor, "full_tensor")


def gathered(*groups: Mapping[str, Any]) -> Iterator[Tensor]:
    """The full tensors, sorted by name in each group. All ranks must exhaust it: each takes part in
    gathering one.
    """
    for group in groups:
        for name in sorted(group):
            tensor = group[name]
            if is_sharded(tensor):
                tensor = tensor.full_tensor()
            yield tensor


def exhaust(tensors: Iterator[Tensor]) -> None:
    """Take part in gathering the remaining tensors."""
    deque(tensors, maxlen=0)


def gather_on_first(named: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """All tensors, full, on rank 0; an empty dictionary on the others."""
    tensors = gathered(named)
    if not ranks.is_first:
        exhaust(tensors)
    on_first: dict[str, Tensor] = {}
    for name, full in zip(sorted(named), tensors, strict=False):  # none on the other ranks
        if is_sharded(named[name]):
            full = full.cpu()
        on_first[name] = full
    return on_first


def _shard(model: Transformer, machine: Machine) -> None:
    """Shard each block, and the rest together; gradients are summed in the master type, not
    averaged.
    """
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    # Outputs that are views are safe here, because none is modified in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    wide = master_dtype(machine.dtype)
    model.to(wide)
    mesh = init_device_mesh(machine.device.type, (machine.ranks.world,))
    policy = fsdp.MixedPrecisionPolicy(machine.dtype, wide, cast_forward_inputs=False)
    blocks: list[nn.Module] = []
    if not model.config.block_of_layer:  # blocks that serve several layers stay with the model
        blocks = [
            block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks
        ]
    # The last block keeps its full weights until the backward pass, which begins there: some losses
    # read them after the forward pass.
    last = blocks[-1] if blocks else None
    for module in (*blocks, model):
        options: dict[str, Any] = {}
        if module is last:
            options["reshard_after_forward"] = False
        fsdp.fully_shard(module, mesh=mesh, mp_policy=policy, **options)
        for method in SECOND_FORWARDS:
            if hasattr(module, method):
                fsdp.register_fsdp_forward_method(module, method)
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.detach().to_local()
    return part
