"""Rotary positions: queries and keys turn by their position, so that their product knows only how far apart they are.

(x₁, x₂) at position p becomes (x₁ cos pω_i − x₂ sin pω_i, x₂ cos pω_i + x₁ sin pω_i),  ω_i = θ^(−2i/R)
                                                                        (Su et al. 2021, equation 34)

The first R dimensions of a head turn, in pairs (i, i + R/2) or (2i, 2i + 1). To read longer texts than those first
trained on, the waves are stretched: SCALINGS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trifold.nn.config import ModelConfig, RotaryScaling
from trifold.nn.masks import Mask


@dataclass(frozen=True)
class Turn:
    """cos and sin (B or 1, 1, T, R/2) of the angles of T positions."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def __call__(self, x: Tensor) -> Tensor:
        """x (B, H, T, D), of which the first R dimensions turn; the last T positions, where there are more."""
        half = self.cos.shape[-1]
        cos, sin = (wave[:, :, -x.shape[2] :] for wave in (self.cos, self.sin))
        turned, rest = x[..., : 2 * half], x[..., 2 * half :]
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., :half], turned[..., half:]
        pair = (first * cos - second * sin, second * cos + first * sin)
        out = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat([out, rest], -1) if rest.shape[-1] else out


@dataclass(frozen=True)
class Turns:
    """How queries and keys turn. `late`: keys turn after the cache, all of them, because their angles change with the
    length; else the new ones turn before it, with the queries.
    """

    queries: Turn
    keys: Turn
    late: bool


class Rotary:
    """The angles of a model's positions; it has no parameters, and its waves stay float32 in a model of bfloat16."""

    def __init__(self, config: ModelConfig) -> None:
        self.width, self.theta, self.scaling = (
            config.rotated_width,
            config.rotary_theta,
            config.rotary_scaling,
        )
        self.interleaved = config.rotary_pairs == "interleaved"
        self.magnitude = magnitude(self.scaling)
        self._waves: dict[torch.device, Tensor] = {}

    def turns(self, positions: Tensor, mask: Mask, like: Tensor) -> Turns:
        """For queries at `positions` (B or 1, T), and the keys that the mask speaks of."""
        if self.scaling is None or self.scaling.kind not in BY_LENGTH:
            turn = self._turn(positions, self._own_waves(positions.device), like)
            return Turns(turn, turn, late=False)
        places = mask.places(positions.shape[1], positions.device)
        waves = BY_LENGTH[self.scaling.kind](self.width, self.theta, self.scaling, places[:, -1:] + 1)
        ours = places[:, mask.offset : mask.offset + positions.shape[1]]
        return Turns(self._turn(ours, waves, like), self._turn(places, waves, like), late=True)

    def _own_waves(self, device: torch.device) -> Tensor:
        if device not in self._waves:
            self._waves[device] = waves(self.width, self.theta, self.scaling).to(device)
        return self._waves[device]

    def _turn(self, positions: Tensor, waves: Tensor, like: Tensor) -> Turn:
        angles = positions[..., None].float() * (waves if waves.dim() == 1 else waves[:, None])
        cos, sin = (
            (wave * self.magnitude if self.magnitude != 1 else wave).to(like.dtype)[:, None]
            for wave in (angles.cos(), angles.sin())
        )
        return Turn(cos, sin, self.interleaved)


def waves(width: int, theta: float, scaling: RotaryScaling | None = None) -> Tensor:
    """(width / 2,) angles a position, in float32 throughout as everybody computes them."""
    plain = _waves(width, theta)
    return plain if scaling is None else SCALINGS[scaling.kind](plain, theta, scaling)


def dynamic_waves(width: int, theta: float, scaling: RotaryScaling, lengths: Tensor) -> Tensor:
    """(B, 1) lengths -> (B, width / 2): θ grows with what goes beyond the first training ("NTK-aware", 2023)."""
    longest = lengths.clamp_min(scaling.original_positions).float()
    stretch = scaling.factor * longest / scaling.original_positions - (scaling.factor - 1)
    base = theta * stretch ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, device=lengths.device).float() / width
    return 1.0 / base**exponents


def long_waves(width: int, theta: float, scaling: RotaryScaling, lengths: Tensor) -> Tensor:
    """(B, 1) lengths -> (B, width / 2): factors that were searched for, one set for texts of the first training's
    length and one for longer texts ("LongRoPE", Ding et al. 2024).
    """
    short, long = (
        torch.tensor(factors, dtype=torch.float32, device=lengths.device)
        for factors in (scaling.short_factors, scaling.long_factors)
    )
    plain = theta ** (torch.arange(0, width, 2, device=lengths.device).float() / width)
    return 1.0 / (torch.where(lengths > scaling.original_positions, long, short) * plain)


# Waves that depend on how long the text has become.
BY_LENGTH: dict[str, Callable[[int, float, RotaryScaling, Tensor], Tensor]] = {
    "dynamic": dynamic_waves,
    "longrope": long_waves,
}


def _waves(width: int, theta: float) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, width, 2, device="cpu").float() / width))


def _linear(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """All alike (Chen et al. 2023, "Position Interpolation")."""
    return plain / scaling.factor


def _yarn(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """Quick waves stay, slow ones are stretched, by a ramp between (Peng et al. 2023, section 3.2)."""
    width = 2 * len(plain)

    def turning(turns: float) -> float:
        """The dimension whose wave makes so many turns over the original positions."""
        waves = scaling.original_positions / (turns * 2 * math.pi)
        return width * math.log(waves) / (2 * math.log(theta))

    low, high = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.round_bounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(len(plain), device="cpu").float() - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return plain / scaling.factor * (1 - kept) + plain * kept


def _llama3(plain: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """The same idea over wave lengths, linear in turns (Dubey et al. 2024, section 3.2, and its code)."""
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
    """What cos and sin are multiplied by, to sharpen attention: Peng et al. 2023, equation 22 for YaRN, and Ding et al.
    2024, section 3.2 for LongRoPE.
    """
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.magnitude is not None:
        return scaling.magnitude
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_positions))
