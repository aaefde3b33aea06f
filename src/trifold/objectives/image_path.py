"""The linear path of a classifier of images: patches of the training images as filters, and
logistic regression on how much of each is in an image (`nn.patch_filters`).

The Transformer learns without the path, as with that of pairs of texts. The fit is a function of
the rows; its random choices are always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.linear.matrix import dense
from trifold.nn import ModelConfig
from trifold.nn.patch_filters import filter_side, image_numbers, normalized_patches, reduced
from trifold.objectives.linear_path import Fitted, Problem, path_columns
from trifold.text.spans import Ids

STRENGTH = 0.01  # C of logistic regression on standardized numbers
MOST_ROWS = 20_000  # that a path is fitted on
PATCHES = 20_000  # whose covariance whitens them
SOURCES = 1_000  # images that patches are from, at most
SMOOTHING = 0.1  # of the variances of whitened patches
CHUNK = 1_000  # images whose pixels are in memory at once
PixelsOf: TypeAlias = Callable[[Ids], Tensor]  # rows -> (B, channels, H, W)


def fit_images(
    config: ModelConfig,
    pixels_of: PixelsOf,
    labels: NDArray[Any],
    class_weights: Tensor | None = None,
) -> Fitted:
    """The path of training images. pixels_of: the pixels of some of the N rows. labels,
    class_weights: as in `fit_path`.
    """
    count = len(labels)
    filters, offsets = draw_filters(config, pixels_of, count)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64))
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    features = torch.cat([image_numbers(pixels_of(some), filters, offsets) for some in chunks])
    means = features.mean(0)
    deviations = features.std(0, correction=0)
    deviations[deviations == 0] = 1
    features.sub_(means).div_(deviations)
    fitted = Problem(config, class_weights, STRENGTH).fit(dense(features), labels[rows])
    weights = fitted.weights / deviations[:, None]
    bias = fitted.bias - means @ weights
    of_features = {"filters": filters, "offsets": offsets}
    return Fitted(weights.float(), bias.float(), of_features, None, len(rows))


def draw_filters(config: ModelConfig, pixels_of: PixelsOf, count: int) -> tuple[Tensor, Tensor]:
    """Filters (K, channels, s, s) and offsets (K,): patches at random places of some of the
    `count` images, which whitening makes comparable. Patches of one color are no filters; if there
    are too few others, the last filters are 0.
    """
    patches = normalized_patches(draw_patches(config, pixels_of, count)).double()
    means = patches.mean(0)
    variances, axes = torch.linalg.eigh(torch.cov(patches.T).reshape(len(means), -1))
    whitening = axes @ torch.diag((variances + SMOOTHING).rsqrt()) @ axes.T
    is_varied = patches.square().mean(1) > 0.5  # noise is below it
    chosen = (patches[is_varied] - means)[: path_columns(config).filters] @ whitening
    lengths = chosen.norm(dim=1, keepdim=True)
    directions = chosen / lengths.where(lengths > 0, 1.0)
    found = torch.zeros(path_columns(config).filters, len(means), dtype=patches.dtype)
    found[: len(directions)] = directions @ whitening
    side = filter_side(*(config.image_size or (1, 1)))
    filters = found.view(-1, config.n_channels, side, side)
    return filters.float(), (found @ means).float()


def draw_patches(config: ModelConfig, pixels_of: PixelsOf, count: int) -> Tensor:
    """(PATCHES, channels · s · s) at random places, by turns of some of the images."""
    rng = np.random.default_rng(0)
    sources = np.unique(np.linspace(0, count - 1, min(count, SOURCES)).astype(np.int64))
    images = reduced(pixels_of(sources))
    side = filter_side(*(config.image_size or (1, 1)))
    windows = images.unfold(2, side, 1).unfold(3, side, 1)  # (B, C, H', W', s, s)
    numbers = np.arange(PATCHES) % len(sources)
    tops, lefts = (rng.integers(0, length, PATCHES) for length in windows.shape[2:4])
    places = (torch.from_numpy(each) for each in (numbers, tops, lefts))
    number, top, left = places
    return windows[number, :, top, left].flatten(1)
