"""Numbers as blocks of GGUF files: the inverse of `blocks`.

Every function takes values in float32, (N, values of a block), and returns blocks as bytes, (N,
bytes of a block). They are those of llama.cpp's `ggml_quantize_chunk` without an importance matrix,
bit for bit: arithmetic is in float32, and sums are added in the order of the values, as in its C
code, which is compiled without fused multiply-add. Loops run over the values of a block, never over
blocks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from trifold.hub.gguf.blocks import BlockType

Array: TypeAlias = np.ndarray[Any, Any]
# Values that are encoded at a time: few calls, and the steps of a search stay in a cache.
CHUNK = 2**17
# A group of Q6_K whose values are smaller is stored as zeros.
_SMALLEST = np.float32(1e-15)


def quantize(values: Tensor, kind: BlockType) -> Array:
    """The blocks of a tensor whose rows are whole blocks, as bytes.

    Raises ValueError, without the name of the tensor, for values that are not finite, or whose
    scale is not.
    """
    numbers = values.detach().reshape(-1, kind.length)
    result = np.empty((len(numbers), kind.bytes), np.uint8)
    encode = _BLOCKS[kind.name]
    step = CHUNK // kind.length
    with np.errstate(all="ignore"):
        for start in range(0, len(numbers), step):
            part = numbers[start : start + step].to(torch.float32).numpy()
            if not np.isfinite(part).all():
                raise ValueError("has values that are not finite")
            encoded = encode(np.ascontiguousarray(part))
            result[start : start + step] = encoded.blocks
            if not np.isfinite(encoded.scales).all():
                largest = float(np.abs(part).max())
                raise ValueError(f"has values up to {largest:g}, too large for {kind.name}")
    return result.reshape(-1)


class _Encoded(NamedTuple):
    """Blocks, and their scales in float16."""

    blocks: Array
    scales: Array


# --- parts of a block -----------------------------------------------------------------------------


def _packed(*parts: Array) -> _Encoded:
    """Parts of blocks, (N, …), one after the other."""
    scales = [part for part in parts if part.dtype == np.float16]
    return _Encoded(
        np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], 1),
        np.concatenate(scales, 1),
    )


def _half(numbers: Array) -> Array:
    """A float16 for each block: (N,) -> (N, 1)."""
    return numbers.astype(np.float16)[:, None]


def _nibbles(codes: Array) -> Array:
    """Pairs of codes in bytes, those of the first half in the lower bits: (…, 2n) -> (…, n)."""
    half = codes.shape[-1] // 2
    packed: Array = (codes[..., :half] & 15) | ((codes[..., half:] & 15) << 4)
    return packed


def _fifth_bits(codes: Array) -> Array:
    """The fifth bits of 32 codes: (N, 32) -> (N, 4)."""
    return np.packbits((codes >> 4) & 1, axis=1, bitorder="little")


def _inverse(scales: Array) -> Array:
    """1 / scale; 0 for a scale that is 0, or so small that float16 has no such scale."""
    inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _extremes(values: Array) -> Array:
    """The value of largest magnitude of each row, the first one of several."""
    first = np.abs(values).argmax(1)
    return np.take_along_axis(values, first[:, None], 1)[:, 0]


def _sum(terms: Array) -> Array:
    """The sums along the first axis, added in its order."""
    total: Array = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total


# --- blocks of 32 ---------------------------------------------------------------------------------


def _q8_0(values: Array) -> _Encoded:
    scale = np.abs(values).max(1) / np.float32(127)
    scaled = values * _inverse(scale)[:, None]
    size = np.abs(scaled)
    whole = np.floor(size)
    whole += size - whole >= 0.5  # half away from zero, unlike NumPy
    return _packed(_half(scale), np.copysign(whole, scaled).astype(np.int8))


def _symmetric_codes(values: Array, levels: int) -> tuple[Array, Array]:
    """Scales, and codes around `levels`, which stands for 0."""
    scale = _extremes(values) / np.float32(-levels)
    shifted = values * _inverse(scale)[:, None] + np.float32(levels + 0.5)
    return scale, np.minimum(shifted.astype(np.uint8), 2 * levels - 1)


def _affine_codes(values: Array, most: int) -> tuple[Array, Array, Array]:
    """Scales, minima, and codes from 0 to `most`."""
    least = values.min(1)
    scale = (values.max(1) - least) / np.float32(most)
    shifted = (values - least[:, None]) * _inverse(scale)[:, None] + np.float32(0.5)
    return scale, least, np.minimum(shifted.astype(np.uint8), most)


def _q4_0(values: Array) -> _Encoded:
    scale, codes = _symmetric_codes(values, 8)
    return _packed(_half(scale), _nibbles(codes))


def _q5_0(values: Array) -> _Encoded:
    scale, codes = _symmetric_codes(values, 16)
    return _packed(_half(scale), _fifth_bits(codes), _nibbles(codes))


def _q4_1(values: Array) -> _Encoded:
    scale, least, codes = _affine_codes(values, 15)
    return _packed(_half(scale), _half(least), _nibbles(codes))


def _q5_1(values: Array) -> _Encoded:
    scale, least, codes = _affine_codes(values, 31)
    return _packed(_half(scale), _half(least), _fifth_bits(codes), _nibbles(codes))


# --- blocks of 256: a search for the scales of groups ---------------------------------------------


class _Search(NamedTuple):
    """How the scale and the minimum of a group are found: codes are 0 to `most`, and the tried
    inverse scales are (first + step · k + most) / range, k = 0 … steps.
    """

    most: int
    first: float
    step: float
    steps: int


_SEARCHES = {"Q4_K": _Search(15, -1.0, 0.1, 20), "Q5_K": _Search(31, -0.5, 0.1, 15)}


class _Found(NamedTuple):
    """The scales and minima of groups, (groups,), and their codes, (values of a group, groups)."""

    scales: Array
    minima: Array
    codes: Array


def _rounded(scaled: Array, least: int, most: int) -> Array:
    """The nearest integers, of two the even one, between `least` and `most`."""
    np.rint(scaled, out=scaled)
    return np.clip(scaled, least, most, out=scaled)


def _finite(numbers: Array) -> Array:
    """The numbers with 0 for infinite ones: llama.cpp rounds what these scale to 0."""
    return np.where(np.isfinite(numbers), numbers, np.float32(0))


def _affine_search(values: Array, search: _Search) -> _Found:
    """Scales and minima with a small weighted square error; values: (32, groups).

    Each trial solves for the scale and the minimum of its codes by least squares. The next one
    scales from the best minimum.
    """
    most = np.float32(search.most)
    weights = np.sqrt(_sum(values * values) / np.float32(len(values))) + np.abs(values)
    sum_w = _sum(weights)
    sum_x = _sum(weights * values)
    largest = values.max(0)
    minima = np.minimum(values.min(0), np.float32(0))
    is_flat = largest == minima
    inverse = most / (largest - minima)
    scales = np.float32(1) / inverse
    codes = _rounded(_finite(inverse) * (values - minima), 0, search.most)
    best = _error(weights, scales, codes, minima, values)
    for number in range(search.steps + 1):
        tried = np.float32(search.first) + np.float32(search.step) * np.float32(number)
        inverse = _finite((tried + most) / (largest - minima))
        trial = _rounded(inverse * (values - minima), 0, search.most)
        weighted = weights * trial
        sum_l, sum_l2, sum_xl = _sum(weighted), _sum(weighted * trial), _sum(weighted * values)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        is_above = least > 0
        least = np.where(is_above, np.float32(0), least)
        scale = np.where(is_above, sum_xl / sum_l2, scale)
        error = _error(weights, scale, trial, least, values)
        is_better = (determinant > 0) & (error < best) & ~is_flat
        best = np.where(is_better, error, best)
        scales = np.where(is_better, scale, scales)
        minima = np.where(is_better, least, minima)
        np.copyto(codes, trial, where=is_better)
    return _Found(np.where(is_flat, np.float32(0), scales), -minima, np.where(is_flat, 0, codes))


def _error(weights: Array, scales: Array, codes: Array, minima: Array, values: Array) -> Array:
    """The weighted square errors of groups."""
    difference = scales * codes
    difference += minima
    difference -= values
    difference *= difference
    difference *= weights
    return _sum(difference)


def _affine_blocks(values: Array, search: _Search) -> tuple[Array, Array, Array, Array]:
    """The parts of blocks of Q4_K and Q5_K: two scales in float16, eight scales and minima of 6
    bits, and codes, (N, 8, 32).
    """
    count = len(values)
    columns = np.ascontiguousarray(values.reshape(-1, 32).T)
    found = _affine_search(columns, search)
    six_bits = []
    halves = []
    for numbers in (found.scales.reshape(count, 8), found.minima.reshape(count, 8)):
        largest = np.maximum(numbers.max(1), np.float32(0))
        inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
        whole = np.rint(inverse[:, None] * numbers).astype(np.int32) & 255
        six_bits.append(np.minimum(whole, 63).astype(np.uint8))
        halves.append((largest / np.float32(63)).astype(np.float16)[:, None])
    scale, least = (
        (half.astype(np.float32) * numbers.astype(np.float32)).reshape(-1)
        for half, numbers in zip(halves, six_bits, strict=True)
    )
    codes = _rounded((columns + least) / scale, 0, search.most)
    codes = np.where(scale == 0, found.codes, codes)
    whole_codes = codes.T.astype(np.uint8).reshape(count, 8, 32)
    return np.concatenate(halves, 1), six_bits[0], six_bits[1], whole_codes


def _six_bit_scales(scales: Array, minima: Array) -> Array:
    """The 12 bytes of eight scales and eight minima of 6 bits."""
    upper = (scales[:, 4:] >> 4) << 6, (minima[:, 4:] >> 4) << 6
    last = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
    return np.concatenate([scales[:, :4] | upper[0], minima[:, :4] | upper[1], last], 1)


def _q4_k(values: Array) -> _Encoded:
    halves, scales, minima, codes = _affine_blocks(values, _SEARCHES["Q4_K"])
    packed = _nibbles(codes.reshape(-1, 4, 64)).reshape(len(values), -1)
    return _packed(halves, _six_bit_scales(scales, minima), packed)


def _q5_k(values: Array) -> _Encoded:
    halves, scales, minima, codes = _affine_blocks(values, _SEARCHES["Q5_K"])
    packed = _nibbles(codes.reshape(-1, 4, 64)).reshape(len(values), -1)
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")[:, 0]
    return _packed(halves, _six_bit_scales(scales, minima), fifth, packed)


def _symmetric_search(values: Array) -> tuple[Array, Array]:
    """The scales of groups of Q6_K, and their codes around 32; values: (16, groups)."""
    sizes = np.abs(values)
    is_zero = sizes.max(0) < _SMALLEST
    extreme = np.take_along_axis(values, sizes.argmax(0)[None], 0)[0]
    cubed = values * values
    squared = cubed.copy()
    cubed *= values
    scales = best = np.zeros(values.shape[1], np.float32)
    codes = np.zeros_like(values)
    for number in (0, *range(-9, 0), *range(1, 10)):
        tried = np.float32(32) + np.float32(0.1) * np.float32(number)
        trial = _rounded(-tried / extreme * values, -32, 31)
        sum_lx, sum_l2 = _sum(cubed * trial), _sum(squared * trial * trial)
        is_better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        if number == 0:
            is_better = np.ones_like(is_better)
        scale = np.where(sum_l2 == 0, np.float32(0), sum_lx / sum_l2)
        scales = np.where(is_better, scale, scales)
        best = np.where(is_better, scale * sum_lx, best)
        np.copyto(codes, trial, where=is_better)
    return np.where(is_zero, np.float32(0), scales), np.where(is_zero, 0, codes + 32)


def _q6_k(values: Array) -> _Encoded:
    count = len(values)
    columns = np.ascontiguousarray(values.reshape(-1, 16).T)
    found, found_codes = _symmetric_search(columns)
    scales = found.reshape(count, 16)
    extreme = _extremes(scales)
    is_zero = np.abs(extreme) < _SMALLEST
    inverse = np.float32(-128) / extreme
    half = np.where(is_zero, np.float32(0), np.float32(1) / inverse).astype(np.float16)
    bytes_of_scales = np.minimum(np.rint(inverse[:, None] * scales), 127)
    bytes_of_scales = np.where(is_zero[:, None], 0, bytes_of_scales).astype(np.int8)
    used = (half.astype(np.float32)[:, None] * bytes_of_scales.astype(np.float32)).reshape(-1)
    codes = _rounded(columns / used, -32, 31) + 32
    codes = np.where(used == 0, found_codes, codes)
    codes = np.where(np.repeat(is_zero, 16), 0, codes)
    whole = codes.T.astype(np.uint8).reshape(count, 2, 4, 32)
    low = _nibbles(whole.reshape(count, 2, 128))
    high = whole >> 4
    upper = high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)
    return _packed(low.reshape(count, -1), upper.reshape(count, -1), bytes_of_scales, half[:, None])


_BLOCKS: dict[str, Callable[[Array], _Encoded]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
