"""What each scheme of positions adds to a model, and the linear relation between sinusoids.

For every offset k, the sinusoids of position p + k are a linear function of those of position p,
PE(p + k) = M(k)·PE(p) (Vaswani et al. 2017, section 3.5). M(k) is closed: the wave of frequency ω
is turned by the angle k·ω,

    sin((p+k)ω) =  cos(kω)·sin(pω) + sin(kω)·cos(pω)
    cos((p+k)ω) = -sin(kω)·sin(pω) + cos(kω)·cos(pω)
"""

from collections.abc import Iterator
from math import ceil, isqrt
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from trifold.costs import SINUSOIDAL, count_parameters, parameter_table
from trifold.errors import TrifoldError
from trifold.nn.config import Positions
from trifold.nn.parts import positions_phrase
from trifold.nn.positions import joined_waves, wave_frequencies
from trifold.nn.variants import ModelConfig

# The sizes of a model that its positions may depend on.
SIZES = (
    *("shape", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size"),
    *("max_positions", "n_decoder_layers", "relative_buckets"),
)


class Scheme(NamedTuple):
    """A scheme of positions in a model of some sizes. parameters: what it adds to the model without
    positions. own: whether it is that of the model. problem: why the model cannot have it, or "".
    """

    name: str
    description: str
    formula: str
    parameters: int
    own: bool
    problem: str = ""


def schemes(config: ModelConfig) -> Iterator[Scheme]:
    """Every scheme with the classical parts and the sizes of a config."""
    sizes = {name: getattr(config, name) for name in SIZES}
    without = ModelConfig.parse({**sizes, "positions": "none"})
    for name in get_args(Positions):
        own = name == config.positions
        try:
            scheme = ModelConfig.parse({**sizes, "positions": name, **_needed(name, config)})
        except TrifoldError as error:
            problem = error.message.removeprefix("model: ").partition(";")[0]
            yield Scheme(name, "", "", 0, own, problem)
            continue
        parameters = count_parameters(scheme) - count_parameters(without)
        formula = _formula(scheme, without)
        yield Scheme(name, positions_phrase(scheme), formula, parameters, own)


def _needed(name: str, config: ModelConfig) -> dict[str, Any]:
    """The settings that a scheme needs: a table begins at the offset of the model; axial positions
    have rows and columns that are as long and as wide as each other, unless the model has others.
    """
    if name in (*SINUSOIDAL, "learned"):
        return {"position_offset": config.position_offset}
    if name != "axial":
        return {}
    rows = isqrt(config.max_positions)
    width = config.d_model // 2
    return {
        "axial_shape": config.axial_shape or (rows, ceil(config.max_positions / rows)),
        "axial_widths": config.axial_widths or (width, config.d_model - width),
    }


def _formula(scheme: ModelConfig, without: ModelConfig) -> str:
    """The sum of the formulas of the rows that only the model with the scheme has."""
    known = {(row.name, row.formula) for row in parameter_table(without)}
    added = [row.formula for row in parameter_table(scheme) if (row.name, row.formula) not in known]
    return " + ".join(added) or "0"


class Relation(NamedTuple):
    """The relation of sinusoids `offset` positions apart. error: the largest difference between
    PE(p + k) and M(k)·PE(p) in float64, over the positions of the model.
    """

    offset: int
    error: float


def shift_matrix(offset: int, width: int, kind: str = "sinusoidal") -> Tensor:
    """The matrix M (width, width) in float64 with PE(p + offset) = M·PE(p) for every p."""
    angles = offset * wave_frequencies(width, kind)
    identity = torch.eye(len(angles), dtype=torch.float64)
    of_sines = joined_waves(
        angles.cos()[:, None] * identity, angles.sin()[:, None] * identity, kind
    )
    of_cosines = joined_waves(
        -angles.sin()[:, None] * identity, angles.cos()[:, None] * identity, kind
    )
    # The rows are in the order of the waves too.
    return joined_waves(of_sines.T, of_cosines.T, kind).T


def check_relation(offset: int, positions: int, width: int, kind: str) -> Relation:
    """The relation, measured at the first `positions` positions."""
    first = torch.arange(positions, dtype=torch.float64)
    before = waves(first, width, kind)
    after = waves(first + offset, width, kind)
    error = (before @ shift_matrix(offset, width, kind).T - after).abs().max()
    return Relation(offset, float(error))


def waves(positions: Tensor, width: int, kind: str = "sinusoidal") -> Tensor:
    """The sinusoids (T, width) of positions (T,) in float64."""
    angles = positions[:, None] * wave_frequencies(width, kind)
    return joined_waves(angles.sin(), angles.cos(), kind)


def kind_of(config: ModelConfig) -> str:
    """The kind of sinusoids of a model, or that of 2017 if it has none."""
    return config.positions if config.positions in SINUSOIDAL else "sinusoidal"
