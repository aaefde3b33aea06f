"""One update of the weights: forward, backward, clip, optimizer step.

On a CPU, a batch is split into micro-batches that worker threads process in parallel, each with a
replica of the model: operators on small tensors scale poorly with threads. A batch may also be
split over ranks. The gradient is the same sum: the ranks first add up their token counts, each
divides its loss sums by the total, and the gradients are summed. DistributedDataParallel is not
used, because it averages over ranks that may have learned from different numbers of tokens, and
because its hooks expect one backward pass per process, where several workers run one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import count, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_training import count_int8_layers, enable_int8_training
from trifold.fast.thread_pool import executor_sharing_cores
from trifold.nn import Transformer
from trifold.nn.rng import use_thread_rng
from trifold.objectives.batch import Batch
from trifold.objectives.objective import Objective
from trifold.recipe import TrainSettings
from trifold.train.blocks import compile_blocks, recompute_blocks, under_graphs
from trifold.train.device import Machine
from trifold.train.flat_weights import FlatWeights
from trifold.train.master_weights import MasterWeights
from trifold.train.moving_average import MovingAverage
from trifold.train.optimizers import check_state, create_optimizer
from trifold.train.parameters import freeze, rate_factors
from trifold.train.rejected import check_update
from trifold.train.schedules import learning_rate, peak_rate
from trifold.train.sharding import ShardedWeights


class Update(NamedTuple):
    """Statistics of an update; `loss` is the negative log-likelihood per token in nats, without
    smoothing.
    """

    loss: float
    norm: float
    rate: float
    tokens: int


class Trainer:
    """Updates a model. Its state: master weights, optimizer state and, with `train.ema`, the
    average of the weights.
    """

    def __init__(
        self, model: Transformer, objective: Objective, settings: TrainSettings, machine: Machine
    ) -> None:
        self.weights, self._replicas = prepare_model(model, settings, machine)
        self.model = model
        self.objective = objective
        self.settings = settings
        self.machine = machine
        self.ranks = machine.ranks
        self._pool: ThreadPoolExecutor | None = None
        # Calls a function for each micro-batch of a group, one per worker.
        self._map: Callable[..., Iterable[Any]] = map
        if machine.workers > 1:
            self._pool = executor_sharing_cores(machine.workers)
            self._map = self._pool.map
        self.optimizer = create_optimizer(self.weights, settings)
        self.average: MovingAverage | None = None
        if settings.ema is not None:
            self.average = MovingAverage(self.weights.master, settings.ema)
        self.peak = settings.learning_rate or peak_rate(model.config.d_model, settings.warmup)

    def __str__(self) -> str:
        text = f"{self.model.count_parameters():,} parameters"
        if self.weights.frozen:
            trained = [p.numel() for p in self.model.parameters() if p.requires_grad]
            text += f" ({sum(trained):,} trained)"
        if self.machine.int8:
            text += f", {count_int8_layers(self.model)} layers in int8"
        return text

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
        local_loss = 0.0
        for start, group in self._groups(batches):
            # _backward(batch, step, micro, totals) of each batch; `micro` counts from `start`.
            losses = self._map(self._backward, group, repeat(step), count(start), repeat(totals))
            local_loss += sum(losses) / totals["tokens"]
            self.weights.collect()
        if self.machine.sharded:  # all ranks must gather the parameters equally often
            no_share = dict.fromkeys(totals, math.inf)  # a loss divided by infinity has gradient 0
            for micro, batch in enumerate(idle, start=len(batches)):
                self._backward(batch, step, micro, no_share)
        (loss,) = self.ranks.sum([local_loss])
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
        if counts:
            names = list(counts[0])
        else:
            names = list(self.objective.counts(idle[0]))
        sums = self.ranks.sum([sum(terms[name] for terms in counts) for name in names])
        # If nothing is predicted, as when no token of a small batch is masked, the loss is 0 / 1.
        return {name: max(1.0, total) for name, total in zip(names, sums, strict=True)}

    def _groups(self, batches: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """The micro-batches that the workers process at a time, one per worker, and the number of
        the first of them.
        """
        workers = len(self._replicas)
        for start in range(0, len(batches), workers):
            yield start, batches[start : start + workers]

    def _backward(self, batch: Batch, step: int, micro: int, totals: dict[str, float]) -> float:
        """Add the gradient of one micro-batch to its replica, and return its summed negative
        log-likelihood. micro: its number in the update of this rank. totals: see
        `_count`.
        """
        with self._replica(step, micro) as model:
            on_device = self.objective.at_step(batch.to(self.machine.device), step)
            terms = self.objective.loss(model, on_device)
            parts = [term.weight * term.sum / totals[name] for name, term in terms.items()]
            torch.stack(parts).sum().backward()
        tokens = terms["tokens"]
        if tokens.nll is not None:
            return float(tokens.nll)
        return float(tokens.sum.detach())

    def _gather(self, batches: Sequence[Any], idle: Sequence[Batch], step: int) -> list[Any]:
        """The batches of an objective that gathers: its loss is a function of the tables of all
        batches of all ranks. Each batch has the value of this loss and the gradient by its own
        table.

        The tables are computed without gradients, and again, with the same dropout, in the backward
        pass (Gao et al. 2021), so that memory holds the activations of one micro-batch per worker.
        """
        tables: list[Tensor] = []
        for start, group in self._groups([*batches, *idle]):
            tables += self._map(self._table, group, repeat(step), count(start))
        empty = tables[0][:0]  # with the right width, if this rank has only idle batches
        local = torch.cat([empty, *tables[: len(batches)]])
        sizes = [int(size) for size in self.ranks.gather(len(local))]
        parts = []  # of each rank; the others add theirs
        for rank, size in enumerate(sizes):
            if rank == self.ranks.rank:
                parts.append(local)
            else:
                parts.append(local.new_zeros(size, local.shape[1]))
        table = torch.cat(parts)
        self.ranks.all_reduce(table)
        loss = self.objective.table_loss(table.requires_grad_())
        value = float(loss.detach())
        gradient = torch.autograd.grad(loss * len(table), table)[0]
        local_gradient = gradient.split(sizes)[self.ranks.rank]
        gradients = local_gradient.split([len(part) for part in tables[: len(batches)]])
        return [
            replace(batch, gradient=own, value=value)
            for batch, own in zip(batches, gradients, strict=True)
        ]

    @torch.no_grad()
    def _table(self, batch: Batch, step: int, micro: int) -> Tensor:
        with self._replica(step, micro) as model:
            return self.objective.table(model, batch.to(self.machine.device))

    @contextmanager
    def _replica(self, step: int, micro: int) -> Iterator[Transformer]:
        """The model of the worker of a micro-batch, with seeded dropout."""
        seed = _dropout_seed(self.settings.seed, step, micro, self.ranks.rank)
        with self._seeded(seed):
            yield self._replicas[micro % len(self._replicas)]

    def _seeded(self, seed: int) -> AbstractContextManager[None]:
        """A context in which dropout draws from this seed."""
        if self.machine.device.type == "cpu" and not self.machine.compiles:
            return use_thread_rng(torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)  # other devices and compiled graphs use the global generator
        if self.machine.compiles:
            return under_graphs()
        return nullcontext()

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
        flat = self.weights.master
        if self.average is not None:
            flat = self.average.mean
        int8 = {
            name: module.dequantize()
            for name, module in self.model.named_modules()
            if isinstance(module, Int8Weight)
        }
        return self._to_global(self.weights.complete(flat)) | int8

    def restore(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises CheckpointError for another optimizer or model."""
        live = self._optimizer_state()
        check_state(self.settings.optimizer, live, optimizer)
        for name, value in self.weights.complete(self.weights.master).items():
            saved = self.weights.to_local(name, weights[name])
            if saved.shape != value.shape:
                raise CheckpointError(
                    f"the checkpoint has another model: {name} is {tuple(saved.shape)} in it, and "
                    f"{tuple(value.shape)} with this data; restore the old data, or start another "
                    "run with --out"
                )
            value.copy_(saved)
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


def prepare_model(
    model: Transformer, settings: TrainSettings, machine: Machine
) -> tuple[MasterWeights, list[Transformer]]:
    """Apply the training options to the model, in the required order, and take over its weights.
    Returns them, and the model with its replicas: one model for each worker.

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
    factors = rate_factors(model, settings.layer_decay)
    model.train()
    if machine.sharded:
        return ShardedWeights(model, machine, factors), [model]
    model.to(machine.device)
    weights = FlatWeights(model, machine.dtype, machine.ranks, factors)
    replicas = [weights.replicate(model) for _ in range(machine.workers - 1)]
    return weights, [model, *replicas]
