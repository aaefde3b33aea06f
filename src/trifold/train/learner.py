"""One update of the weights: forward, backward, clip, and what the optimiser makes of it.

A batch may be cut into shares that are learnt side by side, each by a thread of its own with a replica of the model:
on a CPU, whose operators on small tensors gain little from several threads each, that is the better use of the cores.
So may a batch be shared between ranks. The gradient is the same sum: the ranks first count together what they are about
to learn, each divides its sums by what all have counted, and then the gradients are added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.fast.int8_training import layers_by_bytes
from trifold.fast.threads import sharing_cores
from trifold.nn import Transformer
from trifold.nn.rng import use_thread_rng
from trifold.objectives.objective import Batch, Objective
from trifold.recipe import TrainSettings
from trifold.train.blocks import under_graphs
from trifold.train.ema import MovingAverage
from trifold.train.optimizers import OPTIMIZERS, check_state
from trifold.train.ranks import ALONE, Ranks
from trifold.train.refusals import judge
from trifold.train.schedule import peak_rate, rate
from trifold.train.sharding import ShardedWeights, made_ready


class Update(NamedTuple):
    """What an update was like; loss is the negative log-likelihood a token, in nats, without smoothing."""

    loss: float
    norm: float
    rate: float
    tokens: int


class Learner:
    """Learns from batches. Its state is the master weights, the optimiser's moments and, where the recipe wants it, the
    moving average of the weights; all else is a function.
    """

    def __init__(
        self,
        model: Transformer,
        task: Objective,
        settings: TrainSettings,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        workers: int = 1,
        ranks: Ranks = ALONE,
        compiles: bool = False,
        by_bytes: bool = False,
    ) -> None:
        self.weights = made_ready(model, settings, ranks, device, dtype, compiles=compiles, by_bytes=by_bytes)
        assert not compiles or workers == 1, "a replica's graphs would compute with the model's weights"
        self._compiles, self._by_bytes = compiles, by_bytes
        self.model, self.ranks = model, ranks
        self.task, self.settings, self.seed, self.device = task, settings, seed, device
        self._replicas = [self.model, *(self.weights.replica(self.model) for _ in range(workers - 1))]
        self._pool = sharing_cores(workers) if workers > 1 else None
        self.optimizer = OPTIMIZERS[settings.optimizer](self.weights, settings)
        self.average = None if settings.ema is None else MovingAverage(self.weights.master, settings.ema)
        self.peak = settings.learning_rate or peak_rate(model.config.d_model, settings.warmup)

    def __str__(self) -> str:
        by_bytes = f", {layers_by_bytes(self.model)} layers learning by bytes" if self._by_bytes else ""
        return f"{self.model.count_parameters():,} parameters{by_bytes}"

    def update(
        self,
        batches: Sequence[Batch],
        step: int,
        highest: float = math.inf,
        idle: Sequence[Batch] = (),
    ) -> Update:
        """Update number `step` from the sum of the batches' losses over the count of their tokens, on all ranks.

        Worker w learns batches w, w + workers, … From `idle` ones nothing is learnt: they are there where this rank
        has less to do than others, to keep step with them. Raises Refused on all ranks, and leaves everything as it
        was, where loss or gradient is not finite or the loss is above `highest`.
        """
        totals = self._counted(batches, idle)
        workers = len(self._replicas)
        loss = 0.0
        for start in range(0, len(batches), workers):
            side_by_side = range(start, min(start + workers, len(batches)))
            learn = self._pool.map if self._pool is not None else map
            losses = learn(lambda micro: self._learn(batches[micro], step, micro, totals), side_by_side)
            loss += sum(losses) / totals["tokens"]
            self.weights.collect()
        if isinstance(
            self.weights, ShardedWeights
        ):  # gathered by all ranks at once, as often as any has use for
            for micro, batch in enumerate(idle, start=len(batches)):
                self._learn(batch, step, micro, dict.fromkeys(totals, math.inf))
        (loss,) = self.ranks.total([loss])
        gradient = self.weights.take_gradient()
        norm = self.weights.norm(gradient)
        judge(step, loss, norm, highest)
        now = self.rate(step)
        self.optimizer.step(self._clipped(gradient, norm), now)
        self.weights.publish()
        if self.average is not None:
            self.average.take()
        return Update(loss, norm, now, int(totals["tokens"]))

    def _counted(self, batches: Sequence[Batch], idle: Sequence[Batch]) -> dict[str, float]:
        """What each term of the loss is divided by: its counts over all batches of all ranks."""
        counts = [self.task.counts(batch) for batch in batches]
        names = list(counts[0] if counts else self.task.counts(idle[0]))
        sums = self.ranks.total([sum(count[name] for count in counts) for name in names])
        # Of nothing asked for, as where chance hid no token of a small batch, the sum is 0 and so is the mean.
        return {name: max(1.0, total) for name, total in zip(names, sums, strict=True)}

    def _learn(self, batch: Batch, step: int, micro: int, totals: dict[str, float]) -> float:
        """Leave the gradient of one micro-batch in its replica; its negative log-likelihood, summed."""
        model = self._replicas[micro % len(self._replicas)]
        graphs = under_graphs() if self._compiles else nullcontext()
        with graphs, self._drawing(_dropout_seed(self.seed, step, micro, self.ranks.rank)):
            terms = self.task.loss(model, batch.to(self.device))
            parts = [term.weight * term.sum / totals[name] for name, term in terms.items()]
            torch.stack(parts).sum().backward()
        term = terms["tokens"]
        return float(term.sum if term.nll is None else term.nll)

    def _drawing(self, seed: int) -> AbstractContextManager[None]:
        """Dropout draws from a generator that threads do not share; devices and graphs know only the common ones."""
        if self.device.type == "cpu" and not self._compiles:
            return use_thread_rng(torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        return nullcontext()

    def agree(self) -> None:
        """All ranks begin with the weights of rank 0, which another kind of processor might have drawn otherwise."""
        if not isinstance(self.weights, ShardedWeights):
            self.ranks.take_first(self.weights.master)
            self.weights.publish()

    def close(self) -> None:
        """Send the workers home."""
        if self._pool is not None:
            self._pool.shutdown()

    def rate(self, step: int) -> float:
        """Learning rate of update number `step`."""
        settings = self.settings
        return rate(
            settings.schedule,
            step,
            peak=self.peak,
            warmup=settings.warmup,
            steps=settings.steps,
            final=settings.final_rate,
            decay=settings.decay_steps,
            form=settings.decay_form,
        )

    def _clipped(self, gradient: Tensor, norm: float) -> Tensor:
        limit = self.settings.clip
        return gradient if limit is None or norm <= limit else gradient.mul_(limit / norm)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Master weights, and moments and moving average, by name: the live tensors, which may be in parts."""
        return self._across(self.weights.named(self.weights.master)), self._across(self._moments())

    def _moments(self) -> dict[str, Tensor]:
        moments = self.optimizer.state
        if self.average is not None:
            named = self.weights.named(self.average.mean)
            moments |= {f"ema.{name}": value for name, value in named.items()}
        return moments

    def _across(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: self.weights.across(key, part) for key, part in parts.items()}

    def measured(self) -> dict[str, Tensor]:
        """The weights to validate and keep, by name: their moving average, where there is one. They may be in parts."""
        flat = self.weights.master if self.average is None else self.average.mean
        return self._across(self.weights.named(flat))

    def restore(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Go on from what `state` gave. Raises CheckpointError, touching nothing, where another optimiser gave it."""
        live = self._moments()
        check_state(self.settings.optimizer, live, moments)
        for name, value in self.weights.named(self.weights.master).items():
            value.copy_(self.weights.own(name, weights[name]))
        for key, value in live.items():
            value.copy_(self.weights.own(key, moments[key]))
        if self.average is not None:
            self.average.taken = int(moments["step"].max())
        self.weights.publish()


def _dropout_seed(seed: int, step: int, micro: int, rank: int = 0) -> int:
    """63 bits for the dropout of one micro-batch on one rank."""
    drawn = np.random.SeedSequence([seed, step, micro, rank]).generate_state(1, np.uint64)[0]
    return int(drawn >> np.uint64(1))
