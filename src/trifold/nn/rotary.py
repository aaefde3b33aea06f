"""Rotary positions: queries and keys are rotated by their position, so that their product depends
on the distance only.

(x₁, x₂) at position p becomes (x₁ cos pω_i − x₂ sin pω_i, x₂ cos pω_i + x₁ sin pω_i),
ω_i = θ^(−2i/R)                                                      (Su et al. 2021, equation 34)

The first R dimensions of a head are rotated, in pairs (i, i + R/2) or (2i, 2i + 1). Scalings of the
frequencies ω extend the context beyond that of pretraining: SCALINGS, and SCALINGS_BY_LENGTH if ω
depends on the length of the text.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trifold.nn.config import ModelConfig
from trifold.nn.config_parts import RotaryScaling
from trifold.nn.masks import Mask


@dataclass(frozen=True)
class Rotation:
    """cos and sin (B or 1, 1, T, R/2) of the angles of T positions."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate the first R dimensions of x (B, H, T, D)."""
        half, cos, sin = self.cos.shape[-1], self.cos, self.sin
        rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
        if self.interleaved:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        else:
            first, second = rotated[..., :half], rotated[..., half:]
        pair = (first * cos - second * sin, second * cos + first * sin)
        out = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat([out, rest], -1) if rest.shape[-1] else out


class Rotary:
    """The rotations of a model. It has no parameters; the frequencies stay float32 in a bfloat16
    model.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.width, self.theta = config.rotated_width, config.rotary_theta
        self.scaling = config.rotary_scaling
        self.by_length = SCALINGS_BY_LENGTH.get(self.scaling.kind) if self.scaling else None
        self.interleaved = config.rotary_pairs == "interleaved"
        self.magnitude = magnitude(self.scaling)
        self._frequencies: dict[torch.device, Tensor] = {}

    def frequencies(self, mask: Mask, tokens: int, device: torch.device) -> Tensor:
        """(1, R/2), or (B or 1, R/2) if they depend on the length of a row: of so many new tokens
        and those before.
        """
        if self.scaling is not None and self.by_length is not None:
            lengths = mask.positions(tokens, device)[:, -1:] + 1
            return self.by_length(self.width, self.theta, self.scaling, lengths)
        if device not in self._frequencies:
            self._frequencies[device] = frequencies(self.width, self.theta, self.scaling).to(
                device
            )[None]
        return self._frequencies[device]

    def rotation(self, positions: Tensor, mask: Mask, like: Tensor) -> Rotation:
        """Of tokens at `positions` (B or 1, T)."""
        found = self.frequencies(mask, positions.shape[1], positions.device)
        angles = positions[..., None].float() * found[:, None]
        cos, sin = (
            (x * self.magnitude if self.magnitude != 1 else x).to(like.dtype)[:, None]
            for x in (angles.cos(), angles.sin())
        )
        return Rotation(cos, sin, self.interleaved)


def frequencies(width: int, theta: float, scaling: RotaryScaling | None = None) -> Tensor:
    """(width / 2,) angle per position, in float32 throughout, as other implementations compute
    it.
    """
    plain = 1.0 / (theta ** (torch.arange(0, width, 2, device="cpu").float() / width))
    return plain if scaling is None else SCALINGS[scaling.kind](plain, theta, scaling)


# --- scalings -------------------------------------------------------------------------------------


def _dynamic(width: int, theta: float, scaling: RotaryScaling, lengths: Tensor) -> Tensor:
    """θ grows with the length beyond that of pretraining ("NTK-aware", 2023)."""
    longest = lengths.clamp_min(scaling.original_positions).float()
    stretch = scaling.factor * longest / scaling.original_positions - (scaling.factor - 1)
    base = theta * stretch ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, device=lengths.device).float() / width
    return 1.0 / base**exponents


def _longrope(width: int, theta: float, scaling: RotaryScaling, lengths: Tensor) -> Tensor:
    """A divisor per frequency, found by search: one set up to the length of pretraining, one for
    longer texts (Ding et al. 2024).
    """
    short, long = (
        torch.tensor(factors, dtype=torch.float32, device=lengths.device)
        for factors in (scaling.short_factors, scaling.long_factors)
    )
    plain = theta ** (torch.arange(0, width, 2, device=lengths.device).float() / width)
    return 1.0 / (torch.where(lengths > scaling.original_positions, long, short) * plain)


# width, θ, scaling, lengths (B, 1) -> (B, width / 2)
SCALINGS_BY_LENGTH: dict[str, Callable[[int, float, RotaryScaling, Tensor], Tensor]] = {
    "dynamic": _dynamic,
    "longrope": _longrope,
}


def _linear(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """All frequencies alike (Chen et al. 2023, "Position Interpolation")."""
    return plain / scaling.factor


def _yarn(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """High frequencies stay, low ones are divided, with a ramp between them (Peng et al. 2023,
    section 3.2).
    """
    width = 2 * len(plain)

    def dimension(turns: float) -> float:
        """The dimension that makes this many turns over the original positions."""
        wavelengths = scaling.original_positions / (turns * 2 * math.pi)
        return width * math.log(wavelengths) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.round_bounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(len(plain), device="cpu").float() - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return plain / scaling.factor * (1 - kept) + plain * kept


def _llama3(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """As YaRN, with a ramp that is linear in turns (Dubey et al. 2024, section 3.2, and its
    code).
    """
    turns = scaling.original_positions * plain / (2 * math.pi)
    kept = (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)
    kept = kept.clamp(0, 1)
    return (1 - kept) * plain / scaling.factor + kept * plain


SCALINGS: dict[str, Callable[[Tensor, float, RotaryScaling], Tensor]] = {
    "linear": _linear,
    "yarn": _yarn,
    "llama3": _llama3,
}


def magnitude(scaling: RotaryScaling | None) -> float:
    """The factor of cos and sin, which sharpens attention: Peng et al. 2023, equation 22 for YaRN;
    Ding et al. 2024, section 3.2 for LongRoPE.
    """
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.magnitude is not None:
        return scaling.magnitude
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_positions))
