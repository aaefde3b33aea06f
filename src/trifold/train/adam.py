"""Adam and AdamW (Kingma & Ba 2015, algorithm 1; decoupled weight decay: Loshchilov & Hutter 2019,
algorithm 2).

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
    w ← w − η (m̂ / (√v̂ + ε) + λ w)
                              m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ); λ is 0 outside the decay group
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from trifold.recipe import TrainSettings
from trifold.train.master_weights import MasterWeights


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
        self, weights: MasterWeights, settings: TrainSettings, names: Collection[str] | None = None
    ) -> None:
        decays_everything = settings.optimizer == "adam"
        self._weights = weights
        self._flat = decays_everything and not weights.factors
        self._views = self._named(weights.master)
        if names is not None:
            self._views = {name: view for name, view in self._views.items() if name in names}
        decayed: Collection[str] = self._views.keys()
        if not decays_everything:
            decayed = decay_group(self._views, settings.weight_decay_on)
        # (weight decay, factor of the rate) -> the parameters that have them
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

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat (P,) vector by the name of the parameter, or one view without a name."""
        if self._flat:
            return {"": flat}
        return self._weights.named(flat)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        gradients = self._named(gradient)
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
            if self._flat:
                moments = self._weights.named(moments[""])
            state |= {f"{kind}.{name}": value for name, value in moments.items()}
        return state
