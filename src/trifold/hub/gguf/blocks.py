"""The types of tensors in GGUF files, and the values of their blocks.

A quantized tensor is a sequence of blocks. A block of 32 or 256 values holds small integers, the
codes, and one or more scales. Every function here takes blocks as bytes, (N, bytes of a block), and
returns their values in float32, (N, values of a block). All arithmetic is in float32, in the order
of the reference implementation, so that the values are equal bit for bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Blocks that are decoded at a time: their values fit into a cache.
CHUNK = 2**13
# The values of the codes of IQ4_NL, and of twice those of MXFP4.
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class BlockType(NamedTuple):
    """A type of tensors: the bytes of a block and the number of its values.

    dtype: that of PyTorch, if the bytes are numbers of it; otherwise `values` decodes blocks.
    """

    name: str
    bytes: int
    length: int
    dtype: torch.dtype | None = None
    values: Callable[[Tensor], Tensor] | None = None


# --- parts of a block -----------------------------------------------------------------------------


def _half(blocks: Tensor, at: int) -> Tensor:
    """A float16 in each block, as float32: (N, 1)."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The lower halves of the bytes in the last axis, then the upper halves."""
    return torch.cat([packed & 15, packed >> 4], -1)


def _bits(packed: Tensor) -> Tensor:
    """The bits of the bytes, lowest first: (N, bytes) -> (N, 8 * bytes)."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed[..., None] >> shifts) & 1).flatten(-2)


def _shifted(packed: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """The parts of bytes (…, bytes) after each shift: (…, shifts, bytes)."""
    return (packed[..., None, :] >> torch.tensor(shifts, dtype=torch.uint8)[:, None]) & mask


def _looked_up(values: tuple[int, ...], codes: Tensor) -> Tensor:
    table = torch.tensor(values, dtype=torch.float32)
    return table[codes.int()]


# --- blocks of 32 ---------------------------------------------------------------------------------


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 6:]) | (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks, 0) * (codes.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 8:]) | (_bits(blocks[:, 4:8]) << 4)
    return _half(blocks, 0) * codes.float() + _half(blocks, 2)


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _looked_up(_IQ4_VALUES, _nibbles(blocks[:, 2:]))


def _mxfp4(blocks: Tensor) -> Tensor:
    # 2^(e - 128), because the table holds twice the values; the two smallest are denormal.
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents, (exponents - 1) << 23)
    return bits.view(torch.float32) * _looked_up(_MXFP4_VALUES, _nibbles(blocks[:, 1:]))


# --- blocks of 256 --------------------------------------------------------------------------------


def _six_bit_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and the eight minima, of 6 bits each, in the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], 1)
    minima = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], 1)
    return scales.float(), minima.float()


def _affine(d: Tensor, dmin: Tensor, scales: Tensor, minima: Tensor, codes: Tensor) -> Tensor:
    """d · scale · code − dmin · minimum; codes: (N, groups, values of a group)."""
    products = (d * scales)[..., None] * codes.float()
    return (products - (dmin * minima)[..., None]).flatten(1)


def _scaled(scales: Tensor, codes: Tensor) -> Tensor:
    """scale · code; codes: (N, groups, values of a group)."""
    return torch.mul(scales[..., None], codes).flatten(1)


def scales_of_groups(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and the offsets (N, 8) of blocks of Q4_K or Q5_K, bytes (N, 144 or 176)."""
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _q4_k(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 16:].unflatten(1, (4, 32)), (0, 4), 15).flatten(1, 2)
    return _affine(_half(blocks, 0), _half(blocks, 2), *_six_bit_scales(blocks[:, 4:16]), codes)


def codes_of_q5_k(blocks: Tensor) -> Tensor:
    """The codes (N, 8, 32) of blocks of Q5_K, bytes (N, 176)."""
    codes = _shifted(blocks[:, 48:].unflatten(1, (4, 32)), (0, 4), 15).flatten(1, 2)
    return codes | (_shifted(blocks[:, 16:48], (0, 1, 2, 3, 4, 5, 6, 7), 1) << 4)


def _q5_k(blocks: Tensor) -> Tensor:
    scales = _six_bit_scales(blocks[:, 4:16])
    return _affine(_half(blocks, 0), _half(blocks, 2), *scales, codes_of_q5_k(blocks))


def _q6_k(blocks: Tensor) -> Tensor:
    low = _shifted(blocks[:, :128].unflatten(1, (2, 64)), (0, 4), 15).flatten(2)
    high = _shifted(blocks[:, 128:192].unflatten(1, (2, 32)), (0, 2, 4, 6), 3).flatten(2)
    codes = (low | (high << 4)).flatten(1).unflatten(1, (16, 16)).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return _scaled(scales, codes)


def _q2_k(blocks: Tensor) -> Tensor:
    codes = _shifted(blocks[:, 16:80].unflatten(1, (2, 32)), (0, 2, 4, 6), 3)
    codes = codes.flatten(1).unflatten(1, (16, 16))
    scales = (blocks[:, :16] & 15).float()
    minima = (blocks[:, :16] >> 4).float()
    return _affine(_half(blocks, 80), _half(blocks, 82), scales, minima, codes)


def _q3_k(blocks: Tensor) -> Tensor:
    low = _shifted(blocks[:, 32:96].unflatten(1, (2, 32)), (0, 2, 4, 6), 3).flatten(1)
    is_high = _shifted(blocks[:, :32], (0, 1, 2, 3, 4, 5, 6, 7), 1).flatten(1)
    codes = (low.float() - 4 * (1 - is_high.float())).unflatten(1, (16, 16))
    packed = blocks[:, 96:108]
    upper = _shifted(packed[:, 8:], (0, 2, 4, 6), 3).flatten(1)
    scales = (_nibbles(packed[:, :8]) | (upper << 4)).float() - 32
    return _scaled(_half(blocks, 108) * scales, codes)


# --- the table ------------------------------------------------------------------------------------

# The number of a type in a file -> the type.
TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 4, 1, torch.float32),
    1: BlockType("F16", 2, 1, torch.float16),
    2: BlockType("Q4_0", 18, 32, values=_q4_0),
    3: BlockType("Q4_1", 20, 32, values=_q4_1),
    6: BlockType("Q5_0", 22, 32, values=_q5_0),
    7: BlockType("Q5_1", 24, 32, values=_q5_1),
    8: BlockType("Q8_0", 34, 32, values=_q8_0),
    10: BlockType("Q2_K", 84, 256, values=_q2_k),
    11: BlockType("Q3_K", 110, 256, values=_q3_k),
    12: BlockType("Q4_K", 144, 256, values=_q4_k),
    13: BlockType("Q5_K", 176, 256, values=_q5_k),
    14: BlockType("Q6_K", 210, 256, values=_q6_k),
    20: BlockType("IQ4_NL", 18, 32, values=_iq4_nl),
    28: BlockType("F64", 8, 1, torch.float64),
    30: BlockType("BF16", 2, 1, torch.bfloat16),
    39: BlockType("MXFP4", 17, 32, values=_mxfp4),
}
# Types that are refused by name: of weights, of activations, and of integers.
UNREAD = {
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
}
READ = ", ".join(kind.name for kind in TYPES.values())


def dequantize(raw: Tensor, kind: BlockType) -> Tensor:
    """The values of the blocks in `raw`, bytes, in float32."""
    assert kind.values is not None
    blocks = raw.view(-1, kind.bytes)
    result = torch.empty(len(blocks), kind.length)
    for part, values in zip(blocks.split(CHUNK), result.split(CHUNK), strict=True):
        values.copy_(kind.values(part))
    return result.flatten()
