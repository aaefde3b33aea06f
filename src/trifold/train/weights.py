"""Master weights and gradients as flat vectors, and their distribution over ranks.

All parameters are views of one vector, in bf16 or fp32, and their gradients are views of another. The optimizer works
on fp32 master weights in a third vector, so weights are cast once per step and an update is a few passes over one
vector. In float64, which is for comparisons, all vectors are float64.

Unsharded, each rank has all weights, and the ranks sum one flat gradient per update. DistributedDataParallel is not
used, because it averages over ranks that may have learned from different numbers of tokens, and because its hooks
expect one backward pass per process, where several workers run one each. Sharded, each rank has a part of each
parameter, its gradient and its optimizer state, and full parameters exist only while a block computes (FSDP2: Zhao et
al. 2023, after ZeRO: Rajbhandari et al. 2020).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from trifold.errors import SettingsError
from trifold.fast.int8_training import enable_int8_training
from trifold.nn import Transformer
from trifold.nn.stack import Stack
from trifold.recipe import TrainSettings
from trifold.train.blocks import compile_blocks, recompute_blocks
from trifold.train.distributed import SINGLE, Ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

CHUNK = 2**20  # elements converted and added at once

Model = TypeVar("Model", bound=nn.Module)


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of master weights and gradient sums if the model computes in `dtype`."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def prepare_model(
    model: Transformer,
    settings: TrainSettings,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype,
    *,
    compiles: bool,
    int8: bool,
) -> FlatWeights:
    """Apply the training options to the model, in the required order, and take over its weights.

    1. int8 layers, the innermost.
    2. Recomputation wraps the computation of a block, so it must be inside the compiled graph and the sharding.
    3. Compilation turns each block into a graph; sharding hooks stay outside of it.
    4. Sharding, or moving to the device, takes over the parameters that the previous steps created.
    """
    if int8:
        enable_int8_training(model)
    if settings.recompute == "blocks":
        recompute_blocks(model)
    if compiles:
        compile_blocks(model)
    if settings.sharding == "full" and ranks.world > 1:
        check_sharding(settings)
        return ShardedWeights(model.train(), dtype, ranks, device)
    return FlatWeights(model.to(device).train(), dtype, ranks)


class FlatWeights:
    """Owns the storage of the parameters. `master` and the gradient are (P,) fp32, equal on all ranks."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks = SINGLE) -> None:
        self._ranks = ranks
        self.names = [name for name, _ in model.named_parameters()]
        parameters = list(model.parameters())
        self._sizes = [parameter.numel() for parameter in parameters]
        self._shapes = [parameter.shape for parameter in parameters]
        self.master = torch.cat([p.detach().to(master_dtype(dtype)).flatten() for p in parameters])
        self.low_precision = dtype is not self.master.dtype
        self._compute = self.master.to(dtype) if self.low_precision else self.master
        self._gradients: list[Tensor] = []
        # Allocated once; allocating a vector of this size per update fragments the memory.
        self._total, self._has_gradient = torch.zeros_like(self.master), False
        self._attach(model)
        _cast_buffers(model, dtype)

    def _attach(self, model: nn.Module) -> None:
        """Make the parameters views of the compute weights and their gradients views of a new vector."""
        gradient = torch.zeros_like(self._compute)
        self._gradients.append(gradient)
        for parameter, values, grad in zip(
            model.parameters(), self._compute.split(self._sizes), gradient.split(self._sizes), strict=True
        ):
            parameter.data = values.view(parameter.shape)
            parameter.grad = grad.view(parameter.shape)

    def replicate(self, model: Model) -> Model:
        """Another model that shares the weights and has its own gradients until `collect`."""
        shared = {id(parameter): nn.Parameter(parameter.data) for parameter in model.parameters()}
        replica = deepcopy(model, shared)
        self._attach(replica)
        return replica

    def collect(self) -> None:
        """Add the gradients of the model and its replicas to the fp32 sum, and clear them."""
        for gradient in self._gradients:
            if self._has_gradient:
                for total, chunk in zip(self._total.split(CHUNK), gradient.split(CHUNK), strict=True):
                    total.add_(chunk)
            else:
                self._total.copy_(gradient)
            self._has_gradient = True
            gradient.zero_()

    def take_gradient(self) -> Tensor:
        """The gradient (P,) fp32, summed over all micro-batches since the last call and over all ranks.

        It is valid until the next `collect`.
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

    def publish(self) -> None:
        """Copy the master weights, rounded once, to the model."""
        if self.low_precision:
            self._compute.copy_(self.master)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat (P,) vector in the shapes of the parameters, by name."""
        parts = flat.split(self._sizes)
        return {name: p.view(s) for name, p, s in zip(self.names, parts, self._shapes, strict=True)}

    def flat(self, named: dict[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        return torch.cat([named[name].to(self.master.dtype).flatten() for name in self.names])

    def to_global(self, key: str, part: Tensor) -> Tensor:
        """The tensor of all ranks from the part of this rank. key: PARAMETER or KIND.PARAMETER."""
        return part

    def to_local(self, key: str, full: Tensor) -> Tensor:
        """The part of this rank from a full tensor."""
        return full


# --- sharding ------------------------------------------------------------------------------------------

# Optimizers that update each element independently, so that tensors may be split anywhere.
ELEMENTWISE = ("adam", "adamw")


def check_sharding(settings: TrainSettings) -> None:
    """Raises SettingsError for settings that are incompatible with sharding."""
    if settings.optimizer not in ELEMENTWISE:
        raise SettingsError(
            f"train.sharding: full is incompatible with train.optimizer: {settings.optimizer}, which needs whole "
            f"matrices; set train.sharding=none, or train.optimizer to {' or '.join(ELEMENTWISE)}"
        )
    if settings.workers not in (None, 1):
        raise SettingsError(
            f"train.sharding: full is incompatible with train.workers: {settings.workers}, because workers share "
            "full weights; set train.workers=1, and start more ranks instead"
        )


class ShardedWeights(FlatWeights):
    """Owns the local part of each parameter. `master` and the gradient are flat vectors of these parts."""

    def __init__(self, model: Transformer, dtype: torch.dtype, ranks: Ranks, device: torch.device) -> None:
        _shard(model, dtype, ranks, device)
        self._ranks, self._parameters = ranks, dict(model.named_parameters())
        self.names = list(self._parameters)
        parts = [_local(parameter) for parameter in self._parameters.values()]
        self._sizes, self._shapes = [part.numel() for part in parts], [part.shape for part in parts]
        self.master = torch.cat([part.detach().to(master_dtype(dtype)).flatten() for part in parts])
        self.low_precision = dtype is not self.master.dtype
        _cast_buffers(model, dtype)

    def replicate(self, model: Any) -> Any:
        raise NotImplementedError("sharded weights have no replicas")

    def collect(self) -> None:
        """Nothing to do: FSDP sums the gradients of each micro-batch over the ranks."""

    def take_gradient(self) -> Tensor:
        parts = []
        for parameter, size in zip(self._parameters.values(), self._sizes, strict=True):
            gradient = parameter.grad
            parts.append(self.master.new_zeros(size) if gradient is None else _local(gradient).flatten())
            parameter.grad = None
        return torch.cat(parts)

    def norm(self, gradient: Tensor) -> float:
        local = float(torch.linalg.vector_norm(gradient))
        total: float = self._ranks.sum([local * local])[0] ** 0.5
        return total

    @torch.no_grad()
    def publish(self) -> None:
        for name, part in self.named(self.master).items():
            _local(self._parameters[name]).copy_(part)

    def to_global(self, key: str, part: Tensor) -> Tensor:
        """A distributed tensor; its parts are not gathered yet."""
        from torch.distributed.tensor import DTensor

        like = self._parameter_of(key)
        if like is None:  # equal on all ranks
            return part
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def to_local(self, key: str, full: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        like = self._parameter_of(key)
        if like is None:
            return full
        full = full.to(self.master.device)
        return _local(distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None))

    def _parameter_of(self, key: str) -> Any:
        return self._parameters.get(key, self._parameters.get(key.partition(".")[2]))


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is distributed over the ranks."""
    return hasattr(tensor, "full_tensor")


class Gatherer:
    """Gathers the sharded tensors of some groups one at a time, in the same order on all ranks.

    Rank 0 calls `gather` in that order, and `finish` if it stops early. The other ranks call `finish`.
    """

    def __init__(self, *groups: Mapping[str, Tensor]) -> None:
        self._remaining: deque[DTensor] = deque()
        for group in groups:
            self._remaining += [group[name] for name in sorted(group) if is_sharded(group[name])]  # type: ignore[misc]

    def gather(self, tensor: Tensor) -> Tensor:
        """The full tensor."""
        if not is_sharded(tensor):
            return tensor
        head = self._remaining.popleft()
        assert head is tensor, "tensors must be gathered in the same order on all ranks"
        return head.full_tensor()

    def finish(self) -> None:
        """Take part in gathering the remaining tensors."""
        while self._remaining:
            self._remaining.popleft().full_tensor()


def gather_on_first(named: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """All tensors, full, on rank 0; an empty dictionary on the others."""
    gatherer = Gatherer(named)
    if not ranks.is_first:
        gatherer.finish()
        return {}
    return {
        name: gatherer.gather(named[name]).cpu() if is_sharded(named[name]) else named[name]
        for name in sorted(named)
    }


def _shard(model: Transformer, dtype: torch.dtype, ranks: Ranks, device: torch.device) -> None:
    """Shard each block, and the rest together; gradients are summed in the master type, not averaged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    # Outputs that are views are safe here, because none is modified in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    wide = master_dtype(dtype)
    model.to(wide)
    mesh = init_device_mesh(device.type, (ranks.world,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
    blocks: list[nn.Module] = []
    if not model.config.block_of_layer:  # blocks that serve several layers stay with the model
        blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks]
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
        if hasattr(module, "query_stream"):  # the second forward method of two-stream blocks
            register_fsdp_forward_method(module, "query_stream")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert floating-point buffers to the type of the computation."""
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, buffer.to(dtype) if buffer.is_floating_point() else buffer)


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.detach().to_local()
    return part
