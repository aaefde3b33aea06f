"""Patches of an image instead of tokens             (Dosovitskiy et al. 2021, "Vision Transformer")

A stem of convolutions may come before the patches (Xiao et al. 2021). Shapes: B images, E model
width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.config import CoreConfig
from trifold.nn.embeddings import TokenEmbedding, embedding_dropout
from trifold.nn.formulas import FormulaRow
from trifold.nn.hooks import HookPoint
from trifold.nn.inputs import Inputs
from trifold.nn.layers import Dropout, Linear
from trifold.nn.norms import new_norm
from trifold.nn.parts import EmbeddingsPart, PositionsPart, part_of, positions_phrase
from trifold.nn.problems import Problems, excluded
from trifold.settings import Conflict


class PatchEmbeddings(nn.Module):
    """Patches of an image, flattened and projected, after a class token; positions; norm; dropout.

    A stem of convolutions, each normalized per image, may come before (Xiao et al. 2021).
    """

    formula = "W patch + b + p"

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        assert config.patch_size is not None, "a model of images needs a patch_size"
        self.patch = config.patch_shape[1:]
        self.shape = (config.n_channels, *(config.image_size or ()))
        layers = (
            (nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(1, outputs), nn.GELU())
            for inputs, outputs, stride in config.stem_layers
        )
        self.stem = nn.Sequential(*chain(*layers))
        self.patches = Linear(math.prod(config.patch_shape), config.d_model)
        self.class_token = nn.Parameter(torch.empty(config.d_model))
        self.positions = part_of(PositionsPart, config).new(config)
        self.norm = new_norm(config) if config.embedding_norm else None
        self.drop = Dropout(embedding_dropout(config))
        self.output = HookPoint("state")

    def forward(self, inputs: Inputs, start: int = 0) -> Tensor:
        """-> (B, 1 + patches, E), in the type of the weights while they compute, which may differ
        from their stored type. Raises ValueError without images, or for images of another size.
        """
        pixels = inputs.pixels
        if pixels is None or tuple(pixels.shape[1:]) != self.shape:
            given = "no pixels" if pixels is None else f"pixels of shape {tuple(pixels.shape)}"
            raise ValueError(
                f"{given}; this model needs B images (channels, height, width) = {self.shape}"
            )
        # (B, C, H, W) -> (B, patches, C·h·w) for patches of (h, w), row by row
        pixels = pixels.to(self.class_token.dtype)
        x = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        x = self.patches(F.unfold(x, self.patch, stride=self.patch).mT.contiguous())
        x = torch.cat([self.class_token.expand(x.shape[0], 1, -1), x], 1)
        x = self.positions(x, torch.arange(x.shape[1], device=x.device)[None])
        if self.norm is not None:
            x = self.norm(x)
        return self.output(self.drop(x))


class PatchesPart(EmbeddingsPart):
    """Patches of an image, after a class token."""

    key = "patch_size"
    has_tokens = False
    keys = "image_size stem"
    needs: ClassVar = {"shape": ("encoder",)}
    row = "shape"
    reads = "pixels"

    def new(self, config: CoreConfig, tokens: TokenEmbedding | None) -> nn.Module:
        return PatchEmbeddings(config)

    def image_size(self, config: CoreConfig) -> tuple[int, int] | None:
        return config.image_size

    def problems(self, config: CoreConfig) -> Problems:
        if config.patch_size is None or config.image_size is None:
            yield "patch_size and image_size need each other: give both or neither"
            return
        # An image has no tokens, which attend to all, are predicted, or have types.
        keys = "global_tokens query_stream n_token_types d_embedding"
        yield from excluded(config, self.key, keys)
        yield from _size_problems(config, config.patch_size, config.image_size)
        if "lm" in config.chosen_heads:
            yield "the head lm is for text: choose other heads in a model of images"

    def parameters(self, config: CoreConfig) -> Iterator[FormulaRow]:
        for inputs, outputs, _ in config.stem_layers:
            letters = {"c": inputs, "K": outputs}
            yield FormulaRow(f"convolution to {outputs}", "9·c·K + 3·K", letters)
        yield FormulaRow("patches", "pixels·E + E", {"pixels": prod(config.patch_shape)})
        yield FormulaRow("class token", "E")

    def elements(self, config: CoreConfig) -> int:
        """A token's share of the stem and of the projection of patches, which the class token does
        not pass.
        """
        patches = prod(config.patch_shape) * config.d_model * config.n_patches
        return (_stem_elements(config) + patches) // (config.n_patches + 1)

    def differences(self, config: CoreConfig) -> Iterator[str]:
        yield f"{config.n_patches} image patches and a class token"
        if config.stem:
            yield f"{len(config.stem)} convolutions before the patches"

    def sizes(self, config: CoreConfig) -> str:
        height, width = config.patch_size or (0, 0)
        return f"{config.n_channels} × {height} × {width} → {config.d_model:,}"

    def box(self, config: CoreConfig, lines: Sequence[str]) -> Sequence[str]:
        height, width = config.patch_size or (0, 0)
        patches = f"{config.n_patches:,} patches of {height} × {width}, class token"
        return (patches, positions_phrase(config))


def _size_problems(config: CoreConfig, patch: tuple[int, int], image: tuple[int, int]) -> Problems:
    divides = all(part > 0 and side % part == 0 for side, part in zip(image, patch, strict=True))
    if min(image) < 1 or not divides:
        yield f"patch_size {patch} does not divide image_size {image}"
        return
    if any(side % prod(stride for *_, stride in config.stem_layers) for side in patch):
        yield f"the strides of stem {config.stem} do not divide patch_size {patch}"
    if config.max_positions != config.n_patches + 1:
        text = (
            f"max_positions is {config.max_positions}: {config.n_patches} patches and a class "
            f"token need {config.n_patches + 1}"
        )
        yield Conflict(text, {"max_positions": config.n_patches + 1})


def _stem_elements(config: CoreConfig) -> int:
    """Elements that an image passes in the 3 × 3 convolutions of a stem."""
    height, width = config.image_size or (0, 0)
    total = 0
    for inputs, outputs, stride in config.stem_layers:
        height = -(-height // stride)
        width = -(-width // stride)
        total += 9 * inputs * outputs * height * width
    return total


PARTS = (PatchesPart(),)
