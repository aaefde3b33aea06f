"""The numbers of an image for a linear model: how much of each of K small patches is in each ninth
of it                           (Coates & Ng 2011, "The Importance of Encoding Versus Training with
                                Sparse Coding and Vector Quantization": random patches, equation 6)

    r = w_k · (patch - mean) / √(variance + ε) - o_k
    x = the mean of max(0, r - ¼), and of max(0, -r - ¼), over the patches of a ninth

The filters w_k and offsets o_k whiten the patches and compare them with patch k of the training
images. Images with a side of more than 32 pixels are averaged to 32. Shapes: B images, C channels,
K filters of s x s pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 32  # pixels of a side
SIDE = 6  # s, pixels
THIRDS = 3  # of each side
NUMBERS = 2 * THIRDS**2  # of a filter
THRESHOLD = 0.25
NOISE = 6e-4  # ε; 10 of 255² for pixels from -1 to 1
CHUNK = 64  # images that are filtered at once


def filter_side(height: int, width: int) -> int:
    """s, for images of this size."""
    return min(SIDE, height, width)


def image_numbers(pixels: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
    """(B, 18·K) of pixels (B, C, H, W), by filters (K, C, s, s) and offsets (K,)."""
    return torch.cat([_numbers(some, filters, offsets) for some in pixels.split(CHUNK)])


def reduced(pixels: Tensor) -> Tensor:
    """Pixels (B, C, H, W) with sides of at most 32."""
    height, width = (min(side, LARGEST) for side in pixels.shape[2:])
    if (height, width) == tuple(pixels.shape[2:]):
        return pixels
    return F.adaptive_avg_pool2d(pixels, (height, width))


def normalized_patches(patches: Tensor) -> Tensor:
    """Patches (N, pixels) minus the mean of each, divided by its deviation."""
    centered = patches - patches.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True) + NOISE).sqrt()


def _numbers(pixels: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
    pixels = reduced(pixels)
    side = filters.shape[-1]
    means, squares = (
        F.avg_pool2d(each, side, 1).mean(1, keepdim=True) for each in (pixels, pixels.square())
    )
    deviations = ((squares - means.square()).clamp_min(0) + NOISE).sqrt()
    sums = filters.sum((1, 2, 3))[:, None, None]
    found = (F.conv2d(pixels, filters) - means * sums) / deviations - offsets[:, None, None]
    halves = ((sign * found - THRESHOLD).clamp_min(0) for sign in (1, -1))
    return torch.cat([F.adaptive_avg_pool2d(half, THIRDS).flatten(1) for half in halves], 1)
