"""Scalings of rotary frequencies, which extend the context beyond that of pretraining.

linear    ω / f                                        (Chen et al. 2023, "Position Interpolation")
yarn      high frequencies stay, low ones are divided by f, with a ramp between them
                                                                    (Peng et al. 2023, section 3.2)
llama3    as YaRN, with a ramp that is linear in turns           (Dubey et al. 2024, section 3.2)
dynamic   θ grows with the length of the text                                ("NTK-aware", 2023)
longrope  a divisor for each frequency, another one for texts beyond the context of pretraining
                                                                                (Ding et al. 2024)

In the last two the frequencies depend on the length of a row. A cache then also holds the inputs of
the stack, and a step after which they differ computes all tokens again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from trifold.nn.cache import Cache, StoredInputs
from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Request
from trifold.nn.masks import Mask
from trifold.nn.parts import group
from trifold.nn.problems import Problems
from trifold.nn.rotary import LayerRotations, Rotary, RotaryPart, frequencies
from trifold.nn.stack import Stack
from trifold.settings import Settings

Factors = tuple[Annotated[float, Field(gt=0)], ...]
LENGTHENED = {"factor": 4.0, "original_positions": 2048}  # an example


class RotaryScaling(Settings):
    """How rotary frequencies are scaled to extend the context beyond that of pretraining,
    `original_positions`.

    The unit of frequencies is turns over the original positions.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"] = Field(
        description="method of scaling"
    )
    factor: float = Field(ge=1, description="how many times longer the context is")
    original_positions: int = Field(gt=0, description="context length of pretraining")
    low_frequency: float = Field(
        1.0, gt=0, description="llama3: lower frequencies are divided by factor"
    )
    high_frequency: float = Field(4.0, gt=0, description="llama3: higher frequencies are unchanged")
    beta_fast: float = Field(32.0, gt=0, description="yarn: higher frequencies are unchanged")
    beta_slow: float = Field(1.0, gt=0, description="yarn: lower frequencies are divided by factor")
    round_bounds: bool = Field(True, description="yarn: the bounds of the ramp are whole numbers")
    short_factors: Factors | None = Field(
        None, strict=False, description="longrope: divisors of frequencies"
    )
    long_factors: Factors | None = Field(
        None, strict=False, description="longrope: divisors in longer texts"
    )
    magnitude: float | None = Field(
        None, gt=0, description="factor of cos and sin; default: by kind"
    )


class ScaledRotary(Rotary):
    """Rotations with scaled frequencies."""

    def __init__(
        self, width: int, theta: float, scaling: RotaryScaling, *, interleaved: bool
    ) -> None:
        super().__init__(width, theta, interleaved=interleaved)
        self.scaling = scaling
        self.magnitude = magnitude(scaling)

    def find_frequencies(self) -> Tensor:
        return scaled_frequencies(self.width, self.theta, self.scaling)


class RotaryByLength(ScaledRotary):
    """Rotations whose frequencies depend on the length of a row: of the new tokens and those before
    them.
    """

    def frequencies(self, mask: Mask, tokens: int, device: torch.device) -> Tensor:
        """(B or 1, R/2)."""
        lengths = mask.positions(tokens, device)[:, -1:] + 1
        return SCALINGS_BY_LENGTH[self.scaling.kind](self.width, self.theta, self.scaling, lengths)


class InputsByLength(StoredInputs):
    """The inputs (B, 1, T, E) of a stack whose rotations depend on the length of the text.

    frequencies: (B or 1, R/2) those of the last step; if they change, the states of all tokens do.
    find_frequencies: (mask, number of new tokens, device) -> those of the next step.
    """

    def __init__(self, find_frequencies: Callable[[Mask, int, torch.device], Tensor]) -> None:
        super().__init__()
        self.find_frequencies = find_frequencies
        self.frequencies = torch.empty(0)

    def is_prefix(self, mask: Mask, tokens: int, device: torch.device) -> bool:
        """See `StoredInputs.is_prefix`: False if the other tokens change the angles."""
        first, every = (self.find_frequencies(mask, count, device) for count in (1, tokens))
        return torch.equal(first, every)

    def select(self, rows: Tensor) -> None:
        """Row i becomes row rows[i]."""
        super().select(rows)
        if len(self.frequencies) > 1:
            self.frequencies = self.frequencies[rows]


class StackByLength(Stack):
    """A stack whose rotations depend on the length of the text. With a cache, it computes all
    tokens again after the rotations of earlier ones have changed.
    """

    def new_cache(self, kind: str, capacity: int, rollback: int) -> Cache:
        """See `Stack.new_cache`. The cache also holds the inputs of the stack."""
        cache = super().new_cache(kind, capacity, rollback)
        assert self.rotary is not None, "see `RotaryScalingPart`"
        cache.inputs = InputsByLength(self.rotary.everywhere.frequencies)
        return cache

    def run(self, x: Tensor, request: Request, cache: Cache | None) -> Tensor:
        """See `Stack.run`."""
        count = x.shape[1]
        if cache is not None:
            assert isinstance(cache.inputs, InputsByLength), "see `new_cache`"
            x, mask = _new_or_all(x, request.mask, cache, cache.inputs)
            request = request._replace(mask=mask)
            assert request.positions is None or x.shape[1] == count, (
                "the positions of earlier tokens are not stored"
            )
        return super().run(x, request, cache)[:, -count:]


def _new_or_all(x: Tensor, mask: Mask, cache: Cache, stored: InputsByLength) -> tuple[Tensor, Mask]:
    """The new tokens x (B, T, E), or all if the rotations, and so the states, of earlier ones have
    changed.
    """
    found = stored.find_frequencies(mask, x.shape[1], x.device)
    before = stored.frequencies
    stored.frequencies = found
    changed = mask.offset > 0 and bool((before != found).any())
    if changed:
        cache.move_keys()
        for layer in cache.layers:
            layer.past.clear()
    every = stored.update(x[:, None], x[:, None, :, :0])[0][:, 0]
    return (every, replace(mask, offset=0)) if changed else (x, mask)


class RotaryScalingPart(RotaryPart):
    """Rotary positions with scaled frequencies."""

    key = "rotary_scaling"
    keys = ""
    needs: ClassVar = {"positions": ("rotary",)}
    value = ""

    def new_stack(self, config: CoreConfig) -> type[Stack] | None:
        scaling = _scaling(config)
        return StackByLength if scaling and scaling.kind in SCALINGS_BY_LENGTH else None

    def new_rotary(self, config: CoreConfig) -> LayerRotations:
        scaling = _scaling(config)
        assert scaling is not None, "see `used`"
        kind = RotaryByLength if scaling.kind in SCALINGS_BY_LENGTH else ScaledRotary
        is_interleaved = config.rotary_pairs == "interleaved"
        sizes = config.rotated_width, config.rotary_theta
        return LayerRotations(config, kind(*sizes, scaling, interleaved=is_interleaved))

    def problems(self, config: CoreConfig) -> Problems:
        yield from super().problems(config)
        scaling = _scaling(config)
        assert scaling is not None, "see `used`"
        width = config.rotated_width
        if width == 2 and scaling.kind == "dynamic":
            yield "rotary_scaling: dynamic needs a rotary width of at least 4, not 2"
        low = scaling.low_frequency
        high = scaling.high_frequency
        if scaling.kind == "llama3" and high <= low:
            yield f"rotary_scaling: high_frequency {high} must exceed low_frequency {low}"
        for key in ("short_factors", "long_factors"):
            yield from _factor_problems(scaling, key, width // 2)
        is_short = scaling.original_positions == 1 and scaling.magnitude is None
        if scaling.kind == "longrope" and is_short:
            yield (
                "rotary_scaling: longrope with original_positions 1 has no default magnitude: set "
                "it"
            )

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """The inputs of the stack, if the rotations depend on the length."""
        return 0 if self.new_stack(config) is None else tokens * config.d_model

    def details(self, config: CoreConfig) -> Iterator[str]:
        yield from super().details(config)
        if (scaling := _scaling(config)) is not None:
            yield f"scaled {scaling.factor:g} times, {scaling.kind}"

    def frequencies(self, config: CoreConfig) -> dict[str, Tensor]:
        """For the longest text; without a scaling, of those that do not depend on the length."""
        own = _scaling(config)
        width = config.rotated_width or config.head_width
        examples = [RotaryScaling.parse({"kind": kind, **LENGTHENED}) for kind in SCALINGS]
        return {
            f"{scaling.kind} × {scaling.factor:g}": _longest(width, config.rotary_theta, scaling)
            for scaling in ([own] if own else examples)
        }


def _longest(width: int, theta: float, scaling: RotaryScaling) -> Tensor:
    """(width / 2,) the frequencies of the longest text."""
    by_length = SCALINGS_BY_LENGTH.get(scaling.kind)
    if by_length is None:
        return scaled_frequencies(width, theta, scaling)
    longest = torch.tensor([[int(scaling.factor * scaling.original_positions)]])
    return by_length(width, theta, scaling, longest)[0]


def _factor_problems(scaling: RotaryScaling, key: str, frequencies: int) -> Problems:
    factors = getattr(scaling, key)
    if factors is None and scaling.kind == "longrope":
        yield f"rotary_scaling: kind longrope needs {key}"
    elif factors is not None and scaling.kind != "longrope":
        yield f"rotary_scaling: {key} needs kind longrope, not {scaling.kind}"
    elif factors is not None and len(factors) != frequencies:
        yield (
            f"rotary_scaling: {key} has {len(factors)} values for {frequencies} "
            "frequencies: give one for each"
        )


def _scaling(config: CoreConfig) -> RotaryScaling | None:
    return group(config, "rotary_scaling", RotaryScaling)


def scaled_frequencies(width: int, theta: float, scaling: RotaryScaling) -> Tensor:
    """(width / 2,) angle per position, for scalings that do not depend on the length."""
    return SCALINGS[scaling.kind](frequencies(width, theta), theta, scaling)


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
        inverse_frequency = scaling.original_positions / (turns * 2 * math.pi)
        return width * math.log(inverse_frequency) / (2 * math.log(theta))

    low = dimension(scaling.beta_fast)
    high = dimension(scaling.beta_slow)
    if scaling.round_bounds:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, width - 1)
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


PARTS = (RotaryScalingPart(),)
