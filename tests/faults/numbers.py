"""Numerical promises: finite weights, gradients independent of the split of a batch, masked rows,
exact losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from tests.faults.runs import TINY, Box, forked, lines_of, state_of, training
from torch import Tensor

from trifold import memory
from trifold.errors import SettingsError
from trifold.fast import attention
from trifold.nn import losses, ops
from trifold.nn.masks import Mask
from trifold.recipe import Recipe, load_recipe
from trifold.train import checkpoint, data, recovery
from trifold.train.device import Machine
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.trainer import Trainer


def nonfinite_values_stay_out(box: Box) -> None:
    """NaN or infinity in the loss or gradient of a micro-batch: the run stops or skips the update."""
    step, skips = box.rng.randrange(2, TINY["train.steps"]), box.number % 2 == 1
    parts, workers = box.rng.choice([1, 3]), box.rng.choice([1, 2])
    changes = {
        "train.accumulate": parts,
        "train.workers": workers,
        "train.on_nonfinite": "skip" if skips else "stop",
    }
    where = box.rng.choice(["loss", "gradient"])
    value = box.rng.choice([math.nan, math.inf, -math.inf])
    micro = box.rng.randrange(parts * workers)
    with poisoned(step, micro, where, value, box.rng.random()):
        code = box.train(changes)
    box.expect(
        code == (0 if skips else 1), f"{value} in the {where} of step {step}: exit code {code}"
    )
    for path in checkpoint.list_checkpoints(box.run / "checkpoints"):
        state = checkpoint.load(path)
        for name, tensor in (*state.weights.items(), *state.optimizer.items()):
            box.expect(bool(tensor.isfinite().all()), f"{path.name}: {name} is not finite")
    events = [line for line in lines_of(box.run) if "event" in line]
    expected = "skipped" if skips else "stopped"
    box.expect([(e["step"], e["event"]) for e in events] == [(step, expected)], f"events: {events}")
    box.expect((box.run / events[0]["batch"]).is_file(), "the batch was not written")


@contextmanager
def poisoned(step: int, micro: int, where: str, value: float, place: float) -> Iterator[None]:
    """One micro-batch of one step has `value` as its loss, or in its gradient."""
    real = Trainer._backward

    def backward(self: Trainer, batch: object, now: int, number: int, *more: object) -> float:
        loss = real(self, batch, now, number, *more)  # type: ignore[arg-type]
        if now != step or number != micro:
            return loss
        if where == "loss":
            return value
        gradients = [p.grad for p in self._replicas[number % len(self._replicas)].parameters()]
        flat = gradients[int(place * len(gradients))]
        assert flat is not None
        flat.view(-1)[int(place * flat.numel())] = value
        return loss

    with mock.patch.object(Trainer, "_backward", backward):
        yield


def spikes_are_handled(box: Box) -> None:
    """A loss spike: the update is skipped, or the run is rewound; a killed and resumed run does the
    same.
    """
    way = ("skip", "rewind")[box.number % 2]
    changes = {"train.on_spike": way, "train.spike_window": 5, "train.spike_factor": 3.0}
    step = box.rng.randrange(7, 12)
    whole = box.folder / "whole"
    with _spiking(step, box.folder / "leaping"):
        box.expect(forked(training(whole, changes, box.log)) == 0, "the run failed")
        events = [line for line in lines_of(whole) if "event" in line]
        box.expect(len(events) == 1, f"one spike at step {step}, and events {events}")
        message = (events[0]["event"], events[0].get("spike_at", events[0]["step"]))
        box.expect(
            message == ({"skip": "skipped", "rewind": "rewound"}[way], step),
            f"{message} at step {step}",
        )
        box.train(changes, after=box.rng.uniform(0, 0.5))
        code = box.train(changes)
    box.expect(
        code == 0 and state_of(box.run) == state_of(whole), "the killed and resumed run differs"
    )


@contextmanager
def _spiking(step: int, note: Path) -> Iterator[None]:
    """Multiply the loss of the first batch of that step by ten, in every process that reads `note`."""
    real = Trainer._backward

    def backward(self: Trainer, batch: object, now: int, number: int, *more: object) -> float:
        loss = real(self, batch, now, number, *more)  # type: ignore[arg-type]
        held = _bytes_of(batch)
        if now == step and not note.exists():
            note.write_bytes(held)
        return 10 * loss if note.exists() and held == note.read_bytes() else loss

    with mock.patch.object(Trainer, "_backward", backward):
        yield


def _bytes_of(batch: object) -> bytes:
    return b"".join(tensor.numpy().tobytes() for _, tensor in recovery.find_tensors(batch, ""))


def accumulation_changes_nothing(box: Box) -> None:
    """A batch, split into micro-batches or among workers, gives the same gradient within 1e-6 of
    its norm.
    """
    prepared = data.load_data(_recipe({"model.dropout": 0.0}), box.folder / "tokenizer", View())
    rows = np.array(box.rng.sample(range(len(prepared.train.lengths)), 24))
    whole = _gradient(prepared, [rows])
    cuts = [0, *sorted(box.rng.sample(range(1, len(rows)), box.rng.randrange(1, 6))), len(rows)]
    parts = [rows[start:end] for start, end in pairwise(cuts)]
    ours = _gradient(prepared, parts, workers=box.rng.choice([1, 2, 3]))
    off = float((ours - whole).norm() / whole.norm())
    box.expect(off <= 1e-6, f"{len(parts)} parts: the gradient differs by {off:.1e} of its norm")


def _gradient(prepared: data.TrainingData, parts: list[np.ndarray], workers: int = 1) -> Tensor:
    trainer = Trainer(
        new_model(prepared),
        prepared.objective,
        prepared.recipe.train,
        Machine(torch.device("cpu"), torch.float32, workers),
    )
    taken: list[Tensor] = []
    take = trainer.weights.take_gradient

    def keep() -> Tensor:
        taken.append(take().clone())
        return taken[0]

    with mock.patch.object(trainer.weights, "take_gradient", keep):
        trainer.update([prepared.objective.batch(prepared.train, rows) for rows in parts], 1)
    trainer.close()
    return taken[0]


def _recipe(changes: dict[str, object]) -> Recipe:
    return load_recipe("smoke", {**TINY, **changes})


def fully_masked_rows_are_zero(box: Box) -> None:
    """Queries that may attend to nothing, with any kernel, in bf16 or fp32: output 0 and finite
    gradients.
    """
    random = torch.Generator().manual_seed(box.rng.randrange(2**32))
    rows, heads, length, width = 3, 2, box.rng.randrange(1, 9), 4
    dtype = box.rng.choice([torch.float32, torch.bfloat16])
    keys = torch.rand(rows, length, generator=random) < box.rng.random()
    keys[box.rng.randrange(rows)] = False
    q, k, v = (
        torch.randn(rows, heads, length, width, generator=random).to(dtype).requires_grad_()
        for _ in range(3)
    )
    causal = box.rng.random() < 0.5
    kernel = box.rng.choice(["plain", "fused"])
    attend = ops.PLAIN["attend"] if kernel == "plain" else attention.attend
    out = attend(q, k, v, Mask(keys=keys, causal=causal))
    out.float().square().sum().backward()
    allowed = keys[:, None, :].expand(rows, length, length)
    if causal:
        allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
    blind = ~allowed.any(-1)
    box.expect(
        bool((out.transpose(1, 2)[blind] == 0).all()), f"{kernel}: not 0 in fully masked rows"
    )
    for name, tensor in (("out", out), ("q", q.grad), ("k", k.grad), ("v", v.grad)):
        box.expect(
            tensor is not None and bool(tensor.isfinite().all()), f"{kernel}: {name} is not finite"
        )


def losses_match_the_definition(box: Box) -> None:
    """Label smoothing, with some or all positions ignored: within 1e-6 of the definition in
    float64.
    """
    random = torch.Generator().manual_seed(box.rng.randrange(2**32))
    rows, width, classes = box.rng.randrange(1, 40), 8, box.rng.randrange(2, 50)
    hidden = torch.randn(rows, width, generator=random).requires_grad_()
    weight = torch.randn(classes, width, generator=random).requires_grad_()
    bias = torch.randn(classes, generator=random) if box.rng.random() < 0.5 else None
    targets = torch.randint(classes, (rows,), generator=random)
    ignored = torch.rand(rows, generator=random) < box.rng.choice([0.0, 0.3, 1.0])
    smoothing = box.rng.choice([0.0, 0.1, 0.5])
    sums = losses.linear_cross_entropy(
        hidden, weight, bias, targets.masked_fill(ignored, -1), smoothing
    )
    logits = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())[
        ~ignored
    ]
    exact = F.cross_entropy(logits, targets[~ignored], reduction="sum", label_smoothing=smoothing)
    theirs = float(exact.detach())
    off = abs(float(sums.loss.detach()) - theirs) / max(1.0, abs(theirs))
    box.expect(off <= 2e-6, f"the loss is {theirs}, and ours is off by {off:.1e}")
    sums.loss.backward()
    gradient = torch.autograd.grad(exact, weight)[0] if len(logits) else torch.zeros_like(weight)
    assert weight.grad is not None
    norm = max(1.0, float(gradient.norm()))
    box.expect(float((weight.grad - gradient).norm()) <= 1e-5 * norm, "the gradient is off")


def losses_in_bf16(box: Box) -> None:
    """Cross-entropy over 128k classes in bf16: within 1e-3 of float64 on the same numbers."""
    random = torch.Generator().manual_seed(box.rng.randrange(2**32))
    classes = 131_072 if box.number == 0 else box.rng.choice([1000, 32_000])
    hidden = torch.randn(16, 64, generator=random).bfloat16().requires_grad_()
    weight = (torch.randn(classes, 64, generator=random) / 8).bfloat16()
    targets = torch.randint(classes, (16,), generator=random)
    ours = float(losses.linear_cross_entropy(hidden, weight, None, targets).nll) / 16
    exact = F.cross_entropy(hidden.detach().double() @ weight.double().t(), targets)
    off = abs(ours - float(exact)) / float(exact)
    box.expect(off <= 1e-3, f"{classes:,} classes: off by {off:.1e}")


def oversized_runs_are_rejected(box: Box) -> None:
    """A run that cannot fit is rejected before it starts, and the error names three settings to
    change.
    """
    limit = box.rng.randrange(1, 40) * 2**20
    large = {
        "model.d_model": 256,
        "model.n_layers": 2,
        "model.d_ff": 1024,
        "train.steps": 2,
        "train.warmup": 1,
    }
    with mock.patch.object(
        memory, "_system_limits", return_value=[(limit, "available in this trial")]
    ):
        code = box.train(large)
    message = box.output()
    box.expect(code == SettingsError.exit_code, f"exit code {code} with {limit:,} bytes available")
    named = [key for key in ("batch.tokens", "model.n_layers", "train.workers") if key in message]
    box.expect(len(named) == 3, f"named: {named}")
    box.expect(not checkpoint.list_checkpoints(box.run / "checkpoints"), "the run has started")
