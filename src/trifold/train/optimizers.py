"""The table of optimizers over the flat master weights.

Each works in place on the master weights (P,) and a flat gradient, through views by name where it
needs matrices. Its `state` has live tensors as KIND.PARAMETER and "step", so that copying into them
restores it.
"""

from collections.abc import Callable, Collection
from typing import TypeAlias

from trifold.errors import CheckpointError
from trifold.recipe import TrainSettings
from trifold.train.adafactor import Adafactor
from trifold.train.adam import Adam
from trifold.train.master_weights import MasterWeights
from trifold.train.muon import Muon
from trifold.train.sgd import SGD

Optimizer: TypeAlias = Adam | Adafactor | Muon | SGD

# The values of train.optimizer.
OPTIMIZERS: dict[str, Callable[[MasterWeights, TrainSettings], Optimizer]] = {
    "adam": Adam,
    "adamw": Adam,
    "adafactor": Adafactor,
    "muon": Muon,
    "sgd": SGD,
}
# The kinds of state in a checkpoint, which tell the optimizers apart.
STATE_KINDS: dict[str, frozenset[str]] = {
    "adam": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adamw": frozenset({"step", "exp_avg", "exp_avg_sq"}),
    "adafactor": frozenset({"step", "row", "column", "square"}),
    "muon": frozenset({"step", "exp_avg", "exp_avg_sq", "momentum"}),
    "sgd": frozenset({"step", "momentum"}),
}


def create_optimizer(weights: MasterWeights, settings: TrainSettings) -> Optimizer:
    """The optimizer of `train.optimizer`."""
    return OPTIMIZERS[settings.optimizer](weights, settings)


def check_state(optimizer: str, expected: Collection[str], saved: Collection[str]) -> None:
    """Raises CheckpointError if the saved names differ from those that the optimizer expects."""
    if set(expected) == set(saved):
        return
    saved_kinds = {name.partition(".")[0] for name in saved} - {"ema"}
    owners = [name for name, kinds in STATE_KINDS.items() if kinds == saved_kinds]
    owner = " or ".join(owners or ["an unknown optimizer"])
    if saved_kinds == STATE_KINDS[optimizer]:
        owner += " for other parameters"
    differing = sorted(set(expected) ^ set(saved))
    raise CheckpointError(
        f"the checkpoint contains the state of {owner}, but train.optimizer is {optimizer} "
        f"({len(differing):,} names differ, such as {differing[0]}); continue with the original "
        "recipe, or start another run with --out"
    )
