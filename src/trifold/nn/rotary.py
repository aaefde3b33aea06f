"""Rotary positions: queries and keys are rotated by their position, so that their product depends
on the distance only.

(x₁, x₂) at position p becomes (x₁ cos pω_i − x₂ sin pω_i, x₂ cos pω_i + x₁ sin pω_i),
ω_i = θ^(−2i/R)                                                      (Su et al. 2021, equation 34)

The first R dimensions of a head are rotated, in pairs (i, i + R/2) or (2i, 2i + 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trifold.nn.config import CoreConfig
from trifold.nn.layers import scaled
from trifold.nn.masks import Mask
from trifold.nn.parts import AttentionPart, ScoresPart, part_of
from trifold.nn.problems import Problems
from trifold.nn.registry import register


@dataclass(frozen=True)
class Rotation:
    """cos and sin (B or 1, 1, T, R/2) of the angles of T positions."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate the first R dimensions of x (B, H, T, D)."""
        half = self.cos.shape[-1]
        cos = self.cos
        sin = self.sin
        rotated = x[..., : 2 * half]
        rest = x[..., 2 * half :]
        if self.interleaved:
            first = rotated[..., 0::2]
            second = rotated[..., 1::2]
        else:
            first = rotated[..., :half]
            second = rotated[..., half:]
        pair = (first * cos - second * sin, second * cos + first * sin)
        out = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        if rest.shape[-1] == 0:
            return out
        return torch.cat([out, rest], -1)


class Rotary:
    """The rotations of R dimensions, with frequencies that follow from θ. It has no parameters; the
    frequencies stay float32 in a bfloat16 model.
    """

    magnitude = 1.0
    """A factor of cos and sin."""

    def __init__(self, width: int, theta: float, *, interleaved: bool) -> None:
        self.width = width
        self.theta = theta
        self.interleaved = interleaved
        self._frequencies: dict[torch.device, Tensor] = {}

    def find_frequencies(self) -> Tensor:
        """(R/2,) angle per position."""
        return frequencies(self.width, self.theta)

    def frequencies(self, mask: Mask, tokens: int, device: torch.device) -> Tensor:
        """(1, R/2), or (B, R/2) if they differ between rows, for so many new tokens."""
        if device not in self._frequencies:
            self._frequencies[device] = self.find_frequencies().to(device)[None]
        return self._frequencies[device]

    def rotation(self, positions: Tensor, mask: Mask, like: Tensor) -> Rotation:
        """Of tokens at `positions` (B or 1, T)."""
        frequencies = self.frequencies(mask, positions.shape[1], positions.device)
        angles = positions[..., None].float() * frequencies[:, None]
        cos = scaled(angles.cos(), self.magnitude).to(like.dtype)[:, None]
        sin = scaled(angles.sin(), self.magnitude).to(like.dtype)[:, None]
        return Rotation(cos, sin, self.interleaved)


def frequencies(width: int, theta: float) -> Tensor:
    """(width / 2,) angle per position, in float32 throughout, as other implementations compute
    it.
    """
    return 1.0 / (theta ** (torch.arange(0, width, 2, device="cpu").float() / width))


class LayerRotations:
    """The rotations of the layers of a stack.

    everywhere: of most layers. local: of layers with a window, if they have their own base θ.
    of_layer: which of both a layer uses; None for a layer without positions.
    """

    def __init__(self, config: CoreConfig, everywhere: Rotary) -> None:
        self.everywhere = everywhere
        self.local: Rotary | None = None
        if (theta := config.rotary_local_theta) is not None:
            self.local = Rotary(everywhere.width, theta, interleaved=everywhere.interleaved)
        self.of_layer = [self._rotary_of(config, layer) for layer in range(config.n_layers)]

    def _rotary_of(self, config: CoreConfig, layer: int) -> Rotary | None:
        if not config.rotates(layer):
            return None
        if self.local is not None and config.window(layer) is not None:
            return self.local
        return self.everywhere

    def __call__(
        self, mask: Mask, queries: int, x: Tensor, positions: Tensor | None
    ) -> Sequence[Rotation | None]:
        """The rotation of each layer; positions: (B or 1, T), by default those of the mask."""
        if positions is None:
            every = mask.positions(queries, x.device)
            positions = every[:, mask.offset : mask.offset + queries]
        rotations = {
            rotary: rotary.rotation(positions, mask, x)
            for rotary in (self.everywhere, self.local)
            if rotary is not None
        }
        return [None if rotary is None else rotations[rotary] for rotary in self.of_layer]


class RotaryPart(ScoresPart):
    """Rotary positions without scaling."""

    key = "positions"
    value = "rotary"
    keys = "rotary_width rotary_pairs rotary_theta rotary_local_theta rotary_pattern"
    has_sizes = True
    is_limited = knows_distances = False

    def new_rotary(self, config: CoreConfig) -> LayerRotations:
        width = config.rotated_width
        is_interleaved = config.rotary_pairs == "interleaved"
        return LayerRotations(
            config, Rotary(width, config.rotary_theta, interleaved=is_interleaved)
        )

    def problems(self, config: CoreConfig) -> Problems:
        yield from part_of(AttentionPart, config).rotary_problems(config)

    def phrase(self, config: CoreConfig) -> str:
        return "rotary positions"

    def differences(self, config: CoreConfig) -> Iterator[str]:
        details = "; ".join(self.details(config))
        if details:
            yield f"{self.phrase(config)} ({details})"
        else:
            yield self.phrase(config)
        if "none" in config.rotary_pattern:
            yield "no positions in some layers"
        elif (theta := config.rotary_local_theta) is not None:
            yield f"another base of the rotation in layers with a window ({theta:g})"

    def details(self, config: CoreConfig) -> Iterator[str]:
        """Phrases for the kind of rotation."""
        rotated = config.rotated_width
        if config.rotary_pairs == "interleaved":
            yield "interleaved pairs"
        if rotated < config.head_width:
            yield f"{rotated} of {config.head_width} dimensions"

    def frequencies(self, config: CoreConfig) -> dict[str, Tensor]:
        width = config.rotated_width or config.head_width
        return {"unscaled": frequencies(width, config.rotary_theta)}


register(RotaryPart())
