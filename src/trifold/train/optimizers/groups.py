"""Which parameters are treated alike: told by shape and name, so that a new part falls into its group by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor


def is_matrix(name: str, weight: Tensor) -> bool:
    """Weights of products and tables of embeddings; not biases (even those of several heads), not norms."""
    return weight.dim() >= 2 and not name.endswith("bias")


def is_hidden(name: str, weight: Tensor) -> bool:
    """A matrix of one of the layers: neither embeddings nor heads nor tables of offsets."""
    return weight.dim() == 2 and ".blocks." in name and name.endswith(".weight")


# train.weight_decay_on -> is this parameter drawn to 0?
DECAYS: dict[str, Callable[[str, Tensor], bool]] = {
    "everything": lambda name, weight: True,
    "matrices": is_matrix,
    "hidden": is_hidden,
}


def decaying(weights: Mapping[str, Tensor], on: str | None) -> frozenset[str]:
    """Names of the parameters that weight decay takes: matrices unless said otherwise (Radford et al. 2018)."""
    return frozenset(name for name, weight in weights.items() if DECAYS[on or "matrices"](name, weight))
