"""A model made ready to learn from: in which order, and what each rank keeps of it.

Unsharded, every rank has all weights and moments (weights.py), and the ranks add up one flat gradient. Sharded, every
rank keeps its part of each parameter, its gradient and its moments, and whole parameters are there only while a block
computes with them (FSDP2: Zhao et al. 2023, after ZeRO: Rajbhandari et al. 2020).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trifold.errors import SettingsError
from trifold.fast.int8_training import learn_by_bytes
from trifold.nn import Transformer
from trifold.nn.stack import Stack
from trifold.recipe import TrainSettings
from trifold.train.blocks import compile_blocks, recompute_blocks
from trifold.train.ranks import Ranks
from trifold.train.weights import FlatWeights, cast_buffers, wide_type

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Optimisers that move every number by itself, so that it does not matter on which rank it lies.
ELEMENTWISE = ("adam", "adamw")


def check_sharding(settings: TrainSettings) -> None:
    """Raises SettingsError where a model that is sharded could not be learnt as asked."""
    if settings.optimizer not in ELEMENTWISE:
        raise SettingsError(
            f"train.sharding: full does not go with train.optimizer: {settings.optimizer}, which looks at whole "
            f"matrices; set train.sharding=none, or train.optimizer to {' or '.join(ELEMENTWISE)}"
        )
    if settings.workers not in (None, 1):
        raise SettingsError(
            f"train.sharding: full does not go with train.workers: {settings.workers}, because workers share weights "
            "that are there all the time; set train.workers=1, and start more ranks instead"
        )


def made_ready(
    model: Transformer,
    settings: TrainSettings,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype,
    *,
    compiles: bool,
    by_bytes: bool,
) -> FlatWeights:
    """Give the model the form in which it learns, in this order, and its weights a keeper.

    1. Products of bytes, the innermost.
    2. Recomputing: what runs a block is wrapped from within, so that it runs again under whatever comes around it.
    3. Compiling: blocks become graphs, each for itself, so that what comes around them is not in a graph.
    4. Sharding, or moving to the device, last: it takes over the parameters, as everything before has left them.
    """
    if by_bytes:
        learn_by_bytes(model)
    if settings.recompute == "blocks":
        recompute_blocks(model)
    if compiles:
        compile_blocks(model)
    if settings.sharding == "full" and ranks.world > 1:
        check_sharding(settings)
        return ShardedWeights(model.train(), dtype, ranks, device)
    return FlatWeights(model.to(device).train(), dtype, ranks)


class ShardedWeights(FlatWeights):
    """Owns this rank's part of each parameter of a model. `master` and the gradient taken are flat, of these parts."""

    def __init__(self, model: Transformer, dtype: torch.dtype, ranks: Ranks, device: torch.device) -> None:
        _shard(model, dtype, ranks, device)
        self._ranks, self._parameters = ranks, dict(model.named_parameters())
        self.names = list(self._parameters)
        parts = [_part(parameter) for parameter in self._parameters.values()]
        self._sizes, self._shapes = [part.numel() for part in parts], [part.shape for part in parts]
        self.master = torch.cat([part.detach().to(wide_type(dtype)).flatten() for part in parts])
        self.low_precision = dtype is not self.master.dtype
        cast_buffers(model, dtype)

    def replica(self, model: Any) -> Any:
        """There are none: the weights are not there to be shared."""
        raise NotImplementedError("sharded weights have no replicas")

    def collect(self) -> None:
        """Nothing: the ranks add up the gradients of each micro-batch as it comes."""

    def take_gradient(self) -> Tensor:
        """This rank's part of the sum over all micro-batches of all ranks since the last call."""
        parts = []
        for parameter, size in zip(self._parameters.values(), self._sizes, strict=True):
            gradient = parameter.grad
            parts.append(self.master.new_zeros(size) if gradient is None else _part(gradient).flatten())
            parameter.grad = None
        return torch.cat(parts)

    def norm(self, gradient: Tensor) -> float:
        """Of the whole gradient, of which every rank has a part."""
        part = float(torch.linalg.vector_norm(gradient))
        whole: float = self._ranks.total([part * part])[0] ** 0.5
        return whole

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the master weights; it rounds them when it gathers them."""
        for name, piece in self.named(self.master).items():
            _part(self._parameters[name]).copy_(piece)

    def across(self, key: str, part: Tensor) -> Tensor:
        """What the ranks' parts of it make, as one tensor that is not gathered yet. key: NAME or KIND.NAME."""
        from torch.distributed.tensor import DTensor

        like: Any = self._parameters.get(key, self._parameters.get(key.partition(".")[2]))
        if like is None:  # the same on all ranks
            return part
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def own(self, key: str, whole: Tensor) -> Tensor:
        """This rank's part of a tensor that is whole."""
        from torch.distributed.tensor import distribute_tensor

        like: Any = self._parameters.get(key, self._parameters.get(key.partition(".")[2]))
        if like is None:
            return whole
        laid = distribute_tensor(
            whole.to(self.master.device), like.device_mesh, like.placements, src_data_rank=None
        )
        return _part(laid)


def _shard(model: Transformer, dtype: torch.dtype, ranks: Ranks, device: torch.device) -> None:
    """Every block by itself, and the rest together; gradients are summed in the wide type, not averaged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    # Said of outputs that are views. Nothing here changes such an output in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    wide = wide_type(dtype)
    model.to(wide)
    mesh = init_device_mesh(device.type, (ranks.world,))
    rounding = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
    for part in _parts(model):
        fully_shard(part, mesh=mesh, mp_policy=rounding)
        if hasattr(part, "ask"):  # the other way into it
            register_fsdp_forward_method(part, "ask")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _parts(model: Transformer) -> list[nn.Module]:
    """What is gathered at once: each block, unless it serves several layers, and last the model with what is left."""
    blocks: list[nn.Module] = []
    if not model.config.block_of_layer:
        blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks]
    return [*blocks, model]


def _part(tensor: Any) -> Tensor:
    part: Tensor = tensor.detach().to_local()
    return part


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is one in parts, of which this rank has its own."""
    return hasattr(tensor, "full_tensor")


class Gathering:
    """The sharded ones among some tensors, made whole one at a time, in the same order on all ranks.

    Rank 0 asks for them with `whole` in that order, the others keep step with it by `finish`; so does rank 0 where it
    gives up before the end.
    """

    def __init__(self, *groups: Mapping[str, Tensor]) -> None:
        self._left: deque[DTensor] = deque()
        for group in groups:
            self._left += [group[name] for name in sorted(group) if is_sharded(group[name])]  # type: ignore[misc]

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or what its parts on all ranks make."""
        if not is_sharded(tensor):
            return tensor
        head = self._left.popleft()
        assert head is tensor, "asked for in another order than the other ranks do"
        return head.full_tensor()

    def finish(self) -> None:
        """Gather, for the others, what was not asked for here."""
        while self._left:
            self._left.popleft().full_tensor()


def on_first(named: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """All tensors whole, on rank 0; nothing on the others."""
    gathering = Gathering(named)
    if not ranks.speaks:
        gathering.finish()
        return {}
    whole = {}
    for name in sorted(named):
        tensor = named[name]
        whole[name] = gathering.whole(tensor).cpu() if is_sharded(tensor) else tensor
    return whole
