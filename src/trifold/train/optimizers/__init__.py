"""The optimisers, by the names that recipes have for them.

Each works on the flat master weights (P,) and their flat gradient, in place, and takes views by name where it needs
matrices. Its state is named as a checkpoint names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from torch import Tensor

from trifold.errors import CheckpointError
from trifold.recipe import TrainSettings
from trifold.train.optimizers.adafactor import Adafactor
from trifold.train.optimizers.adamw import AdamW
from trifold.train.optimizers.muon import Muon
from trifold.train.optimizers.plain import PlainAdam
from trifold.train.weights import FlatWeights


class Optimizer(Protocol):
    """Moves the weights that it was made for."""

    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,), which stays as it is, at learning rate `rate`."""

    @property
    def state(self) -> dict[str, Tensor]:
        """All it remembers, as KIND.PARAMETER and step: the live tensors, so that copying into them restores it."""


OPTIMIZERS: dict[str, Callable[[FlatWeights, TrainSettings], Optimizer]] = {
    "adam": PlainAdam,
    "adamw": AdamW,
    "adafactor": Adafactor,
    "muon": Muon,
}
# By what their checkpoints are told apart.
REMEMBERS: dict[str, frozenset[str]] = {
    "adam": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adamw": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adafactor": frozenset({"step", "row", "column", "square"}),
    "muon": frozenset({"step", "exp_avg", "exp_avg_sq", "momentum"}),
}


def check_state(optimizer: str, wanted: Collection[str], saved: Collection[str]) -> None:
    """Raises CheckpointError where the names saved are not those that the optimiser wants."""
    if set(wanted) == set(saved):
        return
    found = {name.partition(".")[0] for name in saved} - {"ema"}
    whose = (
        " or ".join(name for name, kinds in REMEMBERS.items() if kinds == found) or "no optimizer known here"
    )
    if found == REMEMBERS[optimizer]:
        whose += " for other parameters"
    odd = sorted(set(wanted) ^ set(saved))
    raise CheckpointError(
        f"the checkpoint holds the state of {whose}, and train.optimizer is {optimizer} ({len(odd):,} names differ, "
        f"such as {odd[0]}); go on with the recipe that the run was begun with, or begin another with --out"
    )
