"""One update of the weights: forward, backward, clip, optimizer step.

All parameters are views of one vector, in bf16 or fp32, and their gradients are views of another.
The optimizer works on fp32 master weights in a third vector, so weights are cast once per step and
an update is a few passes over one vector. In float64, which is for comparisons, all vectors are
float64.

On a CPU, a batch is split into micro-batches that worker threads process in parallel, each with a
replica of the model: operators on small tensors scale poorly with threads. A batch may also be
split over ranks. The gradient is the same sum: the ranks first add up their token counts, each
divides its loss sums by the total, and the gradients are summed. DistributedDataParallel is not
used, because it averages over ranks that may have learned from different numbers of tokens, and
because its hooks expect one backward pass per process, where several workers run one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trifold.errors import TrifoldError
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_training import count_int8_layers, enable_int8_training
from trifold.fast.thread_pool import executor_sharing_cores
from trifold.nn import Transformer
from trifold.nn.rng import use_thread_rng
from trifold.objectives.batch import Batch
from trifold.objectives.objective import Objective
from trifold.recipe import TrainSettings
from trifold.train.blocks import compile_blocks, recompute_blocks, under_graphs
from trifold.train.device import Machine, master_dtype
from trifold.train.optimizers import (
    MovingAverage,
    check_state,
    create_optimizer,
    learning_rate,
    peak_rate,
)
from trifold.train.parameters import freeze, rate_factors
from trifold.train.ranks import SINGLE, Ranks

T = TypeVar("T")


class Update(NamedTuple):
    """Statistics of an update; `loss` is the negative log-likelihood per token in nats, without
    smoothing.
    """

    loss: float
    norm: float
    rate: float
    tokens: int


class RejectedUpdate(TrifoldError):
    """An update was rejected because of a non-finite loss or gradient, or a loss spike. The weights
    are unchanged.

    The decision depends only on the run itself: a resumed run rejects the same updates as an
    uninterrupted one.
    """

    def __init__(
        self, kind: Literal["non-finite", "spike"], step: int, loss: float, norm: float
    ) -> None:
        cause = f"loss {loss}, gradient norm {norm}{', a spike' * (kind == 'spike')}"
        super().__init__(f"step {step}: {cause}; the weights were not changed")
        self.kind, self.step, self.loss, self.norm = kind, step, loss, norm

    @property
    def details(self) -> dict[str, str]:
        """The values to record, as text, because JSON has no NaN and infinity."""
        return {"what": self.kind, "loss": str(self.loss), "gradient_norm": str(self.norm)}


def spike_threshold(settings: TrainSettings, losses: Sequence[float]) -> float:
    """The largest loss that is no spike: a multiple of the median of the last ones; infinity while
    they are too few.
    """
    if settings.on_spike == "accept" or len(losses) < settings.spike_window:
        return math.inf
    return settings.spike_factor * median(losses)


def check_update(step: int, loss: float, norm: float, max_loss: float = math.inf) -> None:
    """Raises RejectedUpdate if the loss or the gradient norm is not finite, or the loss exceeds
    `max_loss`.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RejectedUpdate("non-finite", step, loss, norm)
    if loss > max_loss:
        raise RejectedUpdate("spike", step, loss, norm)


class Trainer:
    """Updates a model. Its state: master weights, optimizer state and, with `train.ema`, the
    average of the weights.
    """

    def __init__(
        self, model: Transformer, objective: Objective, settings: TrainSettings, machine: Machine
    ) -> None:
        self.weights = prepare_model(model, settings, machine)
        self.model, self.objective, self.settings = model, objective, settings
        self.machine, self.ranks, workers = machine, machine.ranks, machine.workers
        self._replicas = [
            self.model,
            *(self.weights.replicate(self.model) for _ in range(workers - 1)),
        ]
        self._pool = executor_sharing_cores(workers) if workers > 1 else None
        self.optimizer = create_optimizer(self.weights, settings)
        self.average = (
            None if settings.ema is None else MovingAverage(self.weights.master, settings.ema)
        )
        self.peak = settings.learning_rate or peak_rate(model.config.d_model, settings.warmup)

    def __str__(self) -> str:
        int8 = f", {count_int8_layers(self.model)} layers in int8" if self.machine.int8 else ""
        trained = sum(
            parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad
        )
        share = f" ({trained:,} trained)" if self.weights.frozen else ""
        return f"{self.model.count_parameters():,} parameters{share}{int8}"

    def update(
        self,
        batches: Sequence[Batch],
        step: int,
        max_loss: float = math.inf,
        idle: Sequence[Batch] = (),
    ) -> Update:
        """Update number `step`, from the sum of the losses divided by the token count, over all
        ranks.

        Worker w processes batches w, w + workers, … The `idle` batches keep this rank in step with
        others that have more batches; they do not contribute. Raises RejectedUpdate on all ranks,
        leaving all state unchanged, if the loss or the gradient is not finite, or the loss exceeds
        `max_loss`.
        """
        totals = self._count(batches, idle)
        if self.objective.gathers:
            batches = self._gather(batches, idle, step)
        loss = 0.0
        for losses in self._map(
            lambda n: self._backward(batches[n], step, n, totals), len(batches)
        ):
            loss += sum(losses) / totals["tokens"]
            self.weights.collect()
        if self.machine.sharded:  # all ranks must gather the parameters equally often
            for micro, batch in enumerate(idle, start=len(batches)):
                self._backward(batch, step, micro, dict.fromkeys(totals, math.inf))
        (loss,) = self.ranks.sum([loss])
        gradient = self.weights.take_gradient()
        norm = self.weights.norm(gradient)
        check_update(step, loss, norm, max_loss)
        if self.settings.clip is not None and norm > self.settings.clip:
            gradient.mul_(self.settings.clip / norm)
        rate = learning_rate(self.settings, step, self.peak)
        self.optimizer.step(gradient, rate)
        self.weights.publish()
        if self.average is not None:
            self.average.update()
        return Update(loss, norm, rate, int(totals["tokens"]))

    def _count(self, batches: Sequence[Batch], idle: Sequence[Batch]) -> dict[str, float]:
        """The divisor of each loss term: its count over all batches of all ranks."""
        counts = [self.objective.counts(batch) for batch in batches]
        names = list(counts[0] if counts else self.objective.counts(idle[0]))
        sums = self.ranks.sum([sum(count[name] for count in counts) for name in names])
        # If nothing is predicted, as when no token of a small batch is masked, the loss is 0 / 1.
        return {name: max(1.0, total) for name, total in zip(names, sums, strict=True)}

    def _backward(self, batch: Batch, step: int, micro: int, totals: dict[str, float]) -> float:
        """Add the gradient of one micro-batch to its replica, and return its summed negative
        log-likelihood.
        """
        with self._replica(step, micro) as model:
            terms = self.objective.loss(model, batch.to(self.machine.device))
            parts = [term.weight * term.sum / totals[name] for name, term in terms.items()]
            torch.stack(parts).sum().backward()
        term = terms["tokens"]
        return float(term.sum.detach() if term.nll is None else term.nll)

    def _map(self, work: Callable[[int], T], count: int) -> Iterator[list[T]]:
        """The results for micro-batches 0 to count - 1, in groups of one per worker."""
        workers, run = len(self._replicas), map if self._pool is None else self._pool.map
        for start in range(0, count, workers):
            yield [*run(work, range(start, min(start + workers, count)))]

    def _gather(self, batches: Sequence[Any], idle: Sequence[Batch], step: int) -> list[Any]:
        """The batches of a loss that does not split, with its gradient in the global batch by their
        tables.

        The tables are computed without gradients, and again, with the same dropout, in the backward
        pass (Gao et al. 2021), so that memory holds the activations of one micro-batch per worker.
        """
        every, rank = [*batches, *idle], self.ranks.rank
        tables = [
            *chain(*self._map(lambda micro: self._table(every[micro], step, micro), len(every)))
        ]
        own = torch.cat([tables[0][:0], *tables[: len(batches)]])
        counts = self.ranks.gather(len(own))
        parts = [
            own if n == rank else own.new_zeros(int(c), own.shape[1]) for n, c in enumerate(counts)
        ]
        self.ranks.all_reduce(table := torch.cat(parts))
        loss = self.objective.table_loss(table.requires_grad_())
        gradient = torch.autograd.grad(loss * len(table), table)[0].split([*map(len, parts)])[rank]
        shares = gradient.split([len(each) for each in tables[: len(batches)]])
        value = float(loss.detach())
        return [replace(b, gradient=g, value=value) for b, g in zip(batches, shares, strict=True)]

    @torch.no_grad()
    def _table(self, batch: Batch, step: int, micro: int) -> Tensor:
        with self._replica(step, micro) as model:
            return self.objective.table(model, batch.to(self.machine.device))

    @contextmanager
    def _replica(self, step: int, micro: int) -> Iterator[Transformer]:
        """The model of the worker of a micro-batch, with seeded dropout."""
        seed = _dropout_seed(self.settings.seed, step, micro, self.ranks.rank)
        if self.machine.device.type == "cpu" and not self.machine.compiles:
            context: AbstractContextManager[None] = use_thread_rng(
                torch.Generator().manual_seed(seed)
            )
        else:  # other devices and compiled graphs use the global generator
            torch.manual_seed(seed)
            context = under_graphs() if self.machine.compiles else nullcontext()
        with context:
            yield self._replicas[micro % len(self._replicas)]

    def broadcast_weights(self) -> None:
        """Give all ranks the weights of rank 0; another processor may initialize them
        differently.
        """
        if not self.machine.sharded:
            for values in (self.weights.master, *self.weights.frozen.values()):
                self.ranks.broadcast(values)
            self.weights.publish(frozen=True)

    def close(self) -> None:
        """Shut down the worker pool."""
        if self._pool is not None:
            self._pool.shutdown()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Master weights, and optimizer state with the moving average, by name: live tensors,
        possibly sharded.
        """
        weights = self.weights.complete(self.weights.master)
        return self._to_global(weights), self._to_global(self._optimizer_state())

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        if self.average is not None:
            named = self.weights.named(self.average.mean)
            state |= {f"ema.{name}": value for name, value in named.items()}
        return state

    def _to_global(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: self.weights.to_global(key, part) for key, part in parts.items()}

    def evaluation_weights(self) -> dict[str, Tensor]:
        """The weights to validate and keep, by name: the moving average if there is one. They may
        be sharded.
        """
        flat = self.weights.master if self.average is None else self.average.mean
        int8 = {
            n: m.dequantize() for n, m in self.model.named_modules() if isinstance(m, Int8Weight)
        }
        return self._to_global(self.weights.complete(flat)) | int8

    def restore(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises CheckpointError, changing nothing, for another
        optimizer.
        """
        live = self._optimizer_state()
        check_state(self.settings.optimizer, live, optimizer)
        for name, value in self.weights.complete(self.weights.master).items():
            value.copy_(self.weights.to_local(name, weights[name]))
        for key, value in live.items():
            value.copy_(self.weights.to_local(key, optimizer[key]))
        if self.average is not None:
            self.average.updates = int(optimizer["step"].max())
        self.weights.publish(frozen=True)


def _dropout_seed(seed: int, step: int, micro: int, rank: int = 0) -> int:
    """63 bits for the dropout of one micro-batch on one rank."""
    drawn = np.random.SeedSequence([seed, step, micro, rank]).generate_state(1, np.uint64)[0]
    return int(drawn >> np.uint64(1))


# --- the weights ----------------------------------------------------------------------------------

CHUNK = 2**20  # elements converted and added at once


def prepare_model(model: Transformer, settings: TrainSettings, machine: Machine) -> FlatWeights:
    """Apply the training options to the model, in the required order, and take over its weights.

    Frozen parameters come first, because the others depend on them.
    1. int8 layers, the innermost.
    2. Recomputation wraps the computation of a block, so it must be inside the compiled graph and
    the sharding.
    3. Compilation turns each block into a graph; sharding hooks stay outside of it.
    4. Sharding, or moving to the device, takes over the parameters that the previous steps created.
    """
    freeze(model, settings.freeze)
    if machine.int8:
        enable_int8_training(model)
    if settings.recompute == "blocks":
        recompute_blocks(model)
    if machine.compiles:
        compile_blocks(model)
    if machine.sharded:
        from trifold.train.sharding import ShardedWeights

        weights: FlatWeights = ShardedWeights(model.train(), machine)
    else:
        weights = FlatWeights(model.to(machine.device).train(), machine.dtype, machine.ranks)
    weights.factors = rate_factors(model, settings.layer_decay)
    return weights


class FlatWeights:
    """Owns the storage of the parameters. `master` and the gradient are (P,) fp32, equal on all
    ranks.

    frozen: fp32 values of the parameters without gradient, which are not in these vectors. factors:
    of the learning rate, by name, where they are not 1.
    """

    factors: Mapping[str, float] = {}

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks = SINGLE) -> None:
        self._ranks, wide = ranks, master_dtype(dtype)
        self._parameters, self._dtype = dict(model.named_parameters()), dtype
        self.names = [
            name for name, parameter in self._parameters.items() if parameter.requires_grad
        ]
        self.frozen = {
            n: self._own(p).to(wide) for n, p in self._parameters.items() if not p.requires_grad
        }
        parts = [self._own(self._parameters[name]) for name in self.names]
        self._sizes, self._shapes = [part.numel() for part in parts], [part.shape for part in parts]
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
        self._total, self._has_gradient = torch.zeros_like(self.master), False
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
