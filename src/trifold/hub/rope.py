"""How config files say rotary positions: `rope_parameters` now, `rope_theta` and `rope_scaling` in older ones."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.decoders import DecoderFile
from trifold.nn import ModelConfig
from trifold.settings import Settings

THETA = 10_000.0
RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


class RopeKeys(Settings):
    """The keys below `rope_parameters` or `rope_scaling`."""

    rope_type: RopeType | None = None
    type: RopeType | None = None
    rope_theta: float | None = Field(None, gt=0)
    partial_rotary_factor: float | None = Field(None, gt=0, le=1)
    factor: float | None = Field(None, ge=1)
    original_max_position_embeddings: int | None = Field(None, gt=0)
    low_freq_factor: float | None = Field(None, gt=0)
    high_freq_factor: float | None = Field(None, gt=0)
    beta_fast: float | None = Field(None, gt=0)
    beta_slow: float | None = Field(None, gt=0)
    attention_factor: float | None = Field(None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None


class RopeFile(DecoderFile):
    """The keys at the top of the file."""

    rope_parameters: RopeKeys | None = None
    rope_scaling: RopeKeys | None = None
    rope_theta: float | None = Field(None, gt=0)
    partial_rotary_factor: float | None = Field(None, gt=0, le=1)
    original_max_position_embeddings: int | None = Field(None, gt=0)  # goes before that of the keys below

    @property
    def rope_keys(self) -> RopeKeys:
        """Those of `rope_scaling` where there are any, however few: they go before all of `rope_parameters`."""
        said = (keys for keys in (self.rope_scaling, self.rope_parameters) if keys and keys.model_fields_set)
        return next(said, RopeKeys())


def rope_to_ours(
    file: RopeFile,
    max_positions: int,
    head_width: int,
    *,
    part: float | None = None,
    theta: float | None = None,
) -> dict[str, Any]:
    """Our keys of rotary positions.

    part, theta: how much of a head turns, and its base, under a family's own names; it does not look at the usual ones
    then. Without a part, all of the head must turn.
    """
    keys = file.rope_keys
    if part is None and (said := keys.partial_rotary_factor or file.partial_rotary_factor) not in (None, 1.0):
        raise SettingsError(
            f"rope_parameters.partial_rotary_factor: {said} is not supported; here all of a head turns"
        )
    share = keys.partial_rotary_factor or part or 1.0
    base = keys.rope_theta or theta or file.rope_theta or THETA
    for key, used in (("partial_rotary_factor", share), ("rope_theta", base)):
        if getattr(file, key) not in (None, used) and theta is not None:
            raise SettingsError(f"{key}: {getattr(file, key)} contradicts {used}, which other keys say")
    width = int(head_width * share)
    return {
        "positions": "rotary",
        "rotary_theta": float(base),
        "rotary_width": None if width == head_width else width,
        "rotary_scaling": _scaling(keys, max_positions, file.original_max_position_embeddings),
    }


def _scaling(keys: RopeKeys, max_positions: int, before: int | None) -> dict[str, Any] | None:
    kind = keys.rope_type or keys.type or "default"
    if kind == "default":
        return None
    original = before or keys.original_max_position_embeddings or max_positions
    factor = keys.factor
    if kind in ("yarn", "longrope") and factor is None:
        factor = max_positions / original
        factor = max(1.0, factor) if kind == "longrope" else factor  # there it says no more than a magnitude
    if factor is None:
        raise SettingsError(f"rope_parameters.factor: rope_type {kind} needs one")
    ours: dict[str, Any] = {"kind": kind, "factor": float(factor), "original_positions": original}
    match kind:
        case "yarn":
            bounds = {"beta_fast": keys.beta_fast or 32.0, "beta_slow": keys.beta_slow or 1.0}
            return ours | bounds | {"round_bounds": keys.truncate, "magnitude": _magnitude(keys, factor)}
        case "longrope":
            if keys.short_factor is None or keys.long_factor is None:
                raise SettingsError("rope_parameters: rope_type longrope needs short_factor and long_factor")
            factors = {"short_factors": keys.short_factor, "long_factors": keys.long_factor}
            return ours | factors | {"magnitude": keys.attention_factor}
        case "llama3":
            if keys.low_freq_factor is None or keys.high_freq_factor is None:
                raise SettingsError(
                    "rope_parameters: rope_type llama3 needs low_freq_factor and high_freq_factor"
                )
            return ours | {"low_frequency": keys.low_freq_factor, "high_frequency": keys.high_freq_factor}
        case _:
            return ours | {"original_positions": max_positions}  # what else a file says is not looked at


def _magnitude(keys: RopeKeys, factor: float) -> float | None:
    if keys.attention_factor is not None:
        return keys.attention_factor
    if keys.mscale and keys.mscale_all_dim:
        above, under = (
            0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0 for m in (keys.mscale, keys.mscale_all_dim)
        )
        return above / under
    return None


def rope_to_theirs(config: ModelConfig, *, part: bool = False) -> dict[str, object]:
    """The way back; `part`: the family says how much of a head turns."""
    keys: dict[str, object] = {"rope_type": "default", "rope_theta": config.rotary_theta}
    if part:
        keys["partial_rotary_factor"] = _fraction(config.rotated_width, config.head_width)
    scaling = config.rotary_scaling
    if scaling is not None:
        keys |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind in ("yarn", "llama3", "longrope"):
            keys["original_max_position_embeddings"] = scaling.original_positions
        if scaling.kind == "llama3":
            keys |= {"low_freq_factor": scaling.low_frequency, "high_freq_factor": scaling.high_frequency}
        if scaling.kind == "yarn":
            keys |= {
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.round_bounds,
            }
        if scaling.kind == "longrope":
            keys |= {
                "short_factor": list(scaling.short_factors or ()),
                "long_factor": list(scaling.long_factors or ()),
            }
        if scaling.magnitude is not None:
            keys["attention_factor"] = scaling.magnitude
    return {"rope_parameters": keys}


def _fraction(part: int, whole: int) -> float:
    """What times the whole and cut off gives the part."""
    fraction = part / whole
    return fraction if int(whole * fraction) == part else math.nextafter(fraction, 1.0)


def rope_fits(config: ModelConfig, *, part: bool = False) -> bool:
    """Whether the keys can say this config's rotary positions."""
    scaling = config.rotary_scaling
    if config.positions != "rotary" or config.rotary_pairs != "halves":
        return False
    if not part and config.rotated_width != config.head_width:
        return False
    measured = scaling is not None and scaling.kind in ("linear", "dynamic")
    return not measured or scaling is None or scaling.original_positions == config.max_positions


ROPE_SAID = frozenset({"positions", "rotary_theta", "rotary_width", "rotary_scaling", "max_positions"})
