"""Optimizers over the flat master weights, and the schedules of the learning rate.

Each works in place on the master weights (P,) and a flat gradient, through views by name where it
needs matrices. Its `state` has live tensors as KIND.PARAMETER and "step", so that copying into them
restores it. `muon.py` has Muon.

Adam, AdamW (Kingma & Ba 2015, algorithm 1; decoupled weight decay: Loshchilov & Hutter 2019,
algorithm 2):

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
    w ← w − η (m̂ / (√v̂ + ε) + λ w)
                              m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ); λ is 0 outside the decay group

Adafactor (Shazeer & Stern 2018, algorithm 4), the second moments of a matrix from the means of its
rows and columns:

    R ← β R + (1 − β) mean over columns of (G² + ε₁)   C ← β C + (1 − β) mean over rows of (G² + ε₁)
    U = G / √(R Cᵀ / mean R)                                 β = 1 − t^−0.8
    w ← w − η · max(ε₂, rms(w)) · U / max(1, rms(U) / d)
                                             without the factor of w if `relative_step` is off

The squares of a vector are stored in full. There is no first moment. The rates of the paper,
min(10⁻⁶ t, 1/√t), are those of schedule inverse-sqrt with learning_rate 0.01 and warmup 10,000.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from trifold.errors import CheckpointError
from trifold.recipe import TrainSettings

if TYPE_CHECKING:
    from trifold.train.muon import Muon
    from trifold.train.trainer import FlatWeights

Optimizer: TypeAlias = "Adam | Adafactor | Muon"

# The kinds of state in a checkpoint, which tell the optimizers apart.
STATE_KINDS: dict[str, frozenset[str]] = {
    "adam": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adamw": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adafactor": frozenset({"step", "row", "column", "square"}),
    "muon": frozenset({"step", "exp_avg", "exp_avg_sq", "momentum"}),
}


def create_optimizer(weights: FlatWeights, settings: TrainSettings) -> Optimizer:
    """The optimizer of `train.optimizer`."""
    if settings.optimizer == "muon":
        from trifold.train.muon import Muon

        return Muon(weights, settings)
    return (
        Adafactor(weights, settings)
        if settings.optimizer == "adafactor"
        else Adam(weights, settings)
    )


def check_state(optimizer: str, expected: Collection[str], saved: Collection[str]) -> None:
    """Raises CheckpointError if the saved names differ from those that the optimizer expects."""
    if set(expected) == set(saved):
        return
    found = {name.partition(".")[0] for name in saved} - {"ema"}
    owners = [name for name, kinds in STATE_KINDS.items() if kinds == found]
    owner = " or ".join(owners or ["an unknown optimizer"])
    if found == STATE_KINDS[optimizer]:
        owner += " for other parameters"
    differing = sorted(set(expected) ^ set(saved))
    raise CheckpointError(
        f"the checkpoint contains the state of {owner}, but train.optimizer is {optimizer} "
        f"({len(differing):,} names "
        f"differ, such as {differing[0]}); continue with the original recipe, or start another "
        "run with --out"
    )


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Whether a parameter is a matrix of a layer, not of an embedding, a head or relative
    positions.
    """
    return weight.dim() == 2 and ".blocks." in name and name.endswith(".weight")


# train.weight_decay_on -> whether weight decay applies to a parameter. Embedding tables are
# matrices, norms are not.
DECAYS: dict[str, Callable[[str, Tensor], bool]] = {
    "everything": lambda name, weight: True,
    "matrices": lambda name, weight: weight.dim() >= 2 and not name.endswith("bias"),
    "hidden": is_hidden_matrix,
}


def decay_group(weights: Mapping[str, Tensor], on: str | None) -> frozenset[str]:
    """Names of the parameters with weight decay: matrices by default (Radford et al. 2018)."""
    return frozenset(
        name for name, weight in weights.items() if DECAYS[on or "matrices"](name, weight)
    )


class Adam:
    """The fused AdamW of PyTorch, over views of the master weights: all parameters, or those of
    `names`.

    `train.optimizer: adam` has weight decay on everything, and treats all parameters with one rate
    as one vector.
    """

    def __init__(
        self, weights: FlatWeights, settings: TrainSettings, names: Collection[str] | None = None
    ) -> None:
        everything = settings.optimizer == "adam"
        self._weights, self._flat = weights, everything and not weights.factors
        named = {"": weights.master} if self._flat else weights.named(weights.master)
        chosen = named.keys() if names is None else names
        self._views = {name: view for name, view in named.items() if name in chosen}
        decayed = named.keys() if everything else decay_group(named, settings.weight_decay_on)
        self._groups: dict[tuple[float, float], list[str]] = defaultdict(list)
        for name in self._views:
            decay = settings.weight_decay * (name in decayed)
            self._groups[decay, weights.factors.get(name, 1.0)].append(name)
        self._settings = settings
        # The state exists from the start, so that a checkpoint of step 0 has the same names as
        # others.
        self._moments = {
            kind: {name: torch.zeros_like(view) for name, view in self._views.items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }
        self._steps = torch.zeros(
            len(self._views), dtype=torch.float32, device=weights.master.device
        )

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        gradients = {"": gradient} if self._flat else self._weights.named(gradient)
        steps = dict(zip(self._views, self._steps, strict=True))
        for (decay, factor), names in self._groups.items():
            # The class torch.optim.AdamW makes the same call, but also imports the compiler, which
            # takes longer than many small runs train.
            adamw(
                params=[self._views[name] for name in names],
                grads=[gradients[name] for name in names],
                exp_avgs=[self._moments["exp_avg"][name] for name in names],
                exp_avg_sqs=[self._moments["exp_avg_sq"][name] for name in names],
                max_exp_avg_sqs=[],
                state_steps=[steps[name] for name in names],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=rate * factor,
                beta1=settings.beta1,
                beta2=settings.beta2,
                eps=settings.epsilon,
                weight_decay=decay,
            )

    @property
    def state(self) -> dict[str, Tensor]:
        """exp_avg.PARAMETER, exp_avg_sq.PARAMETER, and step: one number for each view."""
        state = {"step": self._steps}
        for kind, moments in self._moments.items():
            named = self._weights.named(moments[""]) if self._flat else moments
            state |= {f"{kind}.{name}": value for name, value in named.items()}
        return state


MIN_SQUARE = 1e-30  # ε₁
MIN_RMS = 1e-3  # ε₂
DECAY_EXPONENT = -0.8  # of 1 − β


class Adafactor:
    """Stores n + m numbers for an n × m matrix."""

    def __init__(self, weights: FlatWeights, settings: TrainSettings) -> None:
        self._weights, self._settings = weights, settings
        self._views = weights.named(weights.master)
        self._decayed = decay_group(self._views, settings.weight_decay_on)
        self._step = torch.zeros(1)
        self._rows = {
            name: torch.zeros_like(w[..., :1]) for name, w in self._views.items() if w.dim() > 1
        }
        self._columns = {
            name: torch.zeros_like(self._views[name][..., :1, :]) for name in self._rows
        }
        self._squares = {
            name: torch.zeros_like(w) for name, w in self._views.items() if w.dim() <= 1
        }

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        self._step += 1
        newest, peak = float(self._step) ** DECAY_EXPONENT, rate  # 1 − β
        for name, grad in self._weights.named(gradient).items():
            weight, rate = self._views[name], peak * self._weights.factors.get(name, 1.0)
            update = self._normalize(name, grad, newest)
            scale = _rms(weight).clamp_min_(MIN_RMS) if settings.relative_step else 1.0
            update *= rate * scale / (_rms(update) / settings.update_clip).clamp_min_(1.0)
            if name in self._decayed:
                weight *= 1 - rate * settings.weight_decay
            weight -= update

    def _normalize(self, name: str, grad: Tensor, newest: float) -> Tensor:
        """G / √V, after updating V."""
        squares = grad.square().add_(MIN_SQUARE)
        if name in self._squares:
            return grad * self._squares[name].lerp_(squares, newest).rsqrt()
        rows = self._rows[name].lerp_(squares.mean(-1, keepdim=True), newest)
        columns = self._columns[name].lerp_(squares.mean(-2, keepdim=True), newest)
        # Without the limit, a row that is tiny next to a huge one rounds to 0, and its inverse is
        # infinite.
        shares = (rows / rows.mean(-2, keepdim=True)).clamp_min_(MIN_SQUARE)
        return grad * shares.rsqrt_() * columns.rsqrt()

    @property
    def state(self) -> dict[str, Tensor]:
        """row.PARAMETER (…, n, 1), column.PARAMETER (…, 1, m), square.PARAMETER of vectors, and
        step (1,).
        """
        kinds = {"row": self._rows, "column": self._columns, "square": self._squares}
        named = {
            f"{kind}.{name}": value for kind, held in kinds.items() for name, value in held.items()
        }
        return {**named, "step": self._step}


def _rms(x: Tensor) -> Tensor:
    """The root mean square, ()."""
    rms: Tensor = torch.linalg.vector_norm(x) / x.numel() ** 0.5
    return rms


class MovingAverage:
    """An exponential moving average of the weights, validated and kept in their place.

        mean_t = Σ_i d^(t−i) w_i / Σ_i d^(t−i)         w_i: the weights after update i, d: the decay

    This is the bias-corrected average of Adam, applied to weights (Kingma & Ba 2015, section 7.2;
    after Polyak & Juditsky 1992), so the initial weights have no influence. It is computed as
    mean_t = mean_(t−1) + (w_t − mean_(t−1)) · (1 − d) / (1 − d^t).

    `updates` may be less than the step, since updates can be skipped. The optimizer's `step` has
    the same value.
    """

    def __init__(self, master: Tensor, decay: float) -> None:
        self._master, self._decay = master, decay
        self.mean, self.updates = master.clone(), 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        self.updates += 1
        total = -math.expm1(self.updates * math.log(self._decay))  # 1 − d^t
        newest = (1 - self._decay) / total  # falls from 1 to 1 − d
        self.mean.lerp_(self._master, min(1.0, newest))


# --- schedules ------------------------------------------------------------------------------------


def peak_rate(d_model: int, warmup: int) -> float:
    """The peak of the paper: d_model^-0.5 · warmup^-0.5."""
    return float(d_model**-0.5 * max(warmup, 1) ** -0.5)


def learning_rate(settings: TrainSettings, step: int, peak: float) -> float:
    """The learning rate of update number `step`, counted from 1: a linear warmup to the peak, then
    the schedule.

    inverse-sqrt         d^-0.5 · min(step^-0.5, step · warmup^-1.5)
                                                                   (Vaswani et al. 2017, equation 3)
                         = peak · min(step / warmup, sqrt(warmup / step))
    linear               linear decay to the final rate at the last step
    cosine               cosine decay to the final rate       (Loshchilov & Hutter 2017, equation 5)
    constant             the peak
    warmup-stable-decay  the peak, then decay in the last `decay` steps (Hu et al. 2024,
                         section 4), linear or 1 − sqrt (Hägele et al. 2024, section 3)
    """
    if step < settings.warmup:
        return peak * step / settings.warmup
    final = settings.final_rate
    return peak * (final + (1 - final) * decay_factor(settings, step))


def decay_factor(settings: TrainSettings, step: int) -> float:
    """The factor after the warmup, from 1 at the peak to 0 at the final rate."""
    steps, warmup = settings.steps, settings.warmup
    if settings.schedule == "inverse-sqrt":
        return math.sqrt(max(warmup, 1) / step)
    if settings.schedule == "linear":
        return max(0.0, (steps - step) / max(steps - warmup, 1))
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup))))
    if settings.schedule == "warmup-stable-decay":
        decayed = (step - (steps - settings.decay_steps)) / settings.decay_steps
        decayed = min(1.0, max(0.0, decayed))
        return 1.0 - (math.sqrt(decayed) if settings.decay_form == "1-sqrt" else decayed)
    return 1.0
