"""One update of the weights: forward, backward, clip, optimizer step.

On a CPU, a batch is split into micro-batches that worker threads process in parallel, each with a replica of the
model: operators on small tensors scale poorly with threads. A batch may also be split over ranks. The gradient is the
same sum: the ranks first add up their token counts, each divides its loss sums by the total, and the gradients are
summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.errors import TrifoldError
from trifold.fast.int8_training import count_int8_layers
from trifold.fast.thread_pool import executor_sharing_cores
from trifold.nn import Transformer
from trifold.nn.rng import use_thread_rng
from trifold.objectives.objective import Batch, Objective
from trifold.recipe import TrainSettings
from trifold.train.blocks import under_graphs
from trifold.train.distributed import SINGLE, Ranks
from trifold.train.optimizers import MovingAverage, check_state, create_optimizer
from trifold.train.schedule import learning_rate, peak_rate
from trifold.train.weights import ShardedWeights, prepare_model


class Update(NamedTuple):
    """Statistics of an update; `loss` is the negative log-likelihood per token in nats, without smoothing."""

    loss: float
    norm: float
    rate: float
    tokens: int


class RejectedUpdate(TrifoldError):
    """An update was rejected because of a non-finite loss or gradient, or a loss spike. The weights are unchanged."""

    def __init__(self, kind: Literal["non-finite", "spike"], step: int, loss: float, norm: float) -> None:
        spike = ", a spike" if kind == "spike" else ""
        super().__init__(
            f"step {step}: loss {loss}, gradient norm {norm}{spike}; the weights were not changed"
        )
        self.kind, self.step, self.loss, self.norm = kind, step, loss, norm


def check_update(step: int, loss: float, norm: float, max_loss: float = math.inf) -> None:
    """Raises RejectedUpdate if the loss or the gradient norm is not finite, or the loss exceeds `max_loss`."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RejectedUpdate("non-finite", step, loss, norm)
    if loss > max_loss:
        raise RejectedUpdate("spike", step, loss, norm)


class Trainer:
    """Updates a model from batches.

    Its state is the master weights, the optimizer state and, with `train.ema`, the moving average of the weights.
    """

    def __init__(
        self,
        model: Transformer,
        objective: Objective,
        settings: TrainSettings,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        workers: int = 1,
        ranks: Ranks = SINGLE,
        compiles: bool = False,
        int8: bool = False,
    ) -> None:
        assert not compiles or workers == 1, (
            "the compiled graph of a replica would use the weights of the model"
        )
        self.weights = prepare_model(model, settings, ranks, device, dtype, compiles=compiles, int8=int8)
        self.model, self.ranks, self._compiles, self._int8 = model, ranks, compiles, int8
        self.objective, self.settings, self.seed, self.device = objective, settings, seed, device
        self._replicas = [self.model, *(self.weights.replicate(self.model) for _ in range(workers - 1))]
        self._pool = executor_sharing_cores(workers) if workers > 1 else None
        self.optimizer = create_optimizer(self.weights, settings)
        self.average = None if settings.ema is None else MovingAverage(self.weights.master, settings.ema)
        self.peak = settings.learning_rate or peak_rate(model.config.d_model, settings.warmup)

    def __str__(self) -> str:
        int8 = f", {count_int8_layers(self.model)} layers in int8" if self._int8 else ""
        return f"{self.model.count_parameters():,} parameters{int8}"

    def update(
        self,
        batches: Sequence[Batch],
        step: int,
        max_loss: float = math.inf,
        idle: Sequence[Batch] = (),
    ) -> Update:
        """Update number `step`, from the sum of the losses divided by the token count, over all ranks.

        Worker w processes batches w, w + workers, … The `idle` batches keep this rank in step with others that have
        more batches; they do not contribute. Raises RejectedUpdate on all ranks, leaving all state unchanged, if the
        loss or the gradient is not finite, or the loss exceeds `max_loss`.
        """
        totals = self._count(batches, idle)
        workers = len(self._replicas)
        loss = 0.0
        for start in range(0, len(batches), workers):
            micro_batches = range(start, min(start + workers, len(batches)))
            run = self._pool.map if self._pool is not None else map
            losses = run(lambda micro: self._backward(batches[micro], step, micro, totals), micro_batches)
            loss += sum(losses) / totals["tokens"]
            self.weights.collect()
        if isinstance(self.weights, ShardedWeights):  # all ranks must gather the parameters equally often
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
        """Add the gradient of one micro-batch to its replica, and return its summed negative log-likelihood."""
        model = self._replicas[micro % len(self._replicas)]
        graphs = under_graphs() if self._compiles else nullcontext()
        with graphs, self._dropout_rng(_dropout_seed(self.seed, step, micro, self.ranks.rank)):
            terms = self.objective.loss(model, batch.to(self.device))
            parts = [term.weight * term.sum / totals[name] for name, term in terms.items()]
            torch.stack(parts).sum().backward()
        term = terms["tokens"]
        return float(term.sum if term.nll is None else term.nll)

    def _dropout_rng(self, seed: int) -> AbstractContextManager[None]:
        """Seed dropout: a generator of this thread, or the global one for other devices and compiled graphs."""
        if self.device.type == "cpu" and not self._compiles:
            return use_thread_rng(torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        return nullcontext()

    def broadcast_weights(self) -> None:
        """Give all ranks the weights of rank 0; another processor may initialize them differently."""
        if not isinstance(self.weights, ShardedWeights):
            self.ranks.broadcast(self.weights.master)
            self.weights.publish()

    def close(self) -> None:
        """Shut down the worker pool."""
        if self._pool is not None:
            self._pool.shutdown()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Master weights, and optimizer state with the moving average, by name: live tensors, possibly sharded."""
        return self._to_global(self.weights.named(self.weights.master)), self._to_global(
            self._optimizer_state()
        )

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        if self.average is not None:
            named = self.weights.named(self.average.mean)
            state |= {f"ema.{name}": value for name, value in named.items()}
        return state

    def _to_global(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: self.weights.to_global(key, part) for key, part in parts.items()}

    def evaluation_weights(self) -> dict[str, Tensor]:
        """The weights to validate and keep, by name: the moving average if there is one. They may be sharded."""
        flat = self.weights.master if self.average is None else self.average.mean
        return self._to_global(self.weights.named(flat))

    def restore(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises CheckpointError, changing nothing, for another optimizer."""
        live = self._optimizer_state()
        check_state(self.settings.optimizer, live, optimizer)
        for name, value in self.weights.named(self.weights.master).items():
            value.copy_(self.weights.to_local(name, weights[name]))
        for key, value in live.items():
            value.copy_(self.weights.to_local(key, optimizer[key]))
        if self.average is not None:
            self.average.updates = int(optimizer["step"].max())
        self.weights.publish()


def _dropout_seed(seed: int, step: int, micro: int, rank: int = 0) -> int:
    """63 bits for the dropout of one micro-batch on one rank."""
    drawn = np.random.SeedSequence([seed, step, micro, rank]).generate_state(1, np.uint64)[0]
    return int(drawn >> np.uint64(1))
