"""Weights in blocks of 32 values with a scale each: 8, 6, 5 or 4 bits a value.

`BlockWeight.quantize` rounds a matrix. `from_q8_0`, `from_q5_0`, `from_q4_0` and the like take the
blocks of a GGUF file, which keep their values bit for bit: they are only laid out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast.quantized_weight import QuantizedWeight

BLOCK = 32  # values with one scale
PANEL = 16  # rows that are read together
WORD = 4  # codes of one row that are multiplied together
CHUNK = 2**20  # values that are quantized or dequantized at a time, to bound the memory of copies
NIBBLES = 4  # words of a block with 4 bits of each code
ZERO_CODES = {8: 128, 6: 32, 5: 16, 4: 8}  # the code of the value 0, by bits; 0 with offsets
# The levels of 4 bits: near 0, where most weights are, they are closer. They are those of IQ4_NL.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Levels that the largest value of a block gets, one trial each. Between two it is rounded to one.
LARGEST = (-127, -137, 113, -108, -122, 120)


class BlockWeight(QuantizedWeight):
    """A matrix (N, K) ≈ scale · (code - zero), scale · code + offset, or scale · level[code], of
    blocks of 32 columns. The last block of a row is padded if its columns are fewer.

    values: (N / 16, blocks, words, 16, 4) bytes. Rows are read 16 at a time: of each block, first 4
        codes of each of the rows, then the next 4. In 8 bits a block has 8 words. In 4 bits it has
        4: the lower halves of its bytes are its first 16 codes, the upper halves the others. In 5
        and 6 bits, words with the fifth and with the sixth bits follow (`upper_bits`).
    scales: (N / 16, blocks, 1 or 2, 16) float16, the scale of each row and, if there are two, its
        offset. Without offsets, the code of 0 is the half of their number (ZERO_CODES).
    has_levels: whether codes, of 4 bits, are numbers of LEVELS.
    shape: (N, K). Rows that fill the last 16 have scales of 0. Codes that fill the last block of a
        row are of no column: activations have zeros there.
    dtype: the type of the original matrix and of the results.
    """

    values: Tensor
    scales: Tensor

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        has_levels: bool = False,
    ) -> None:
        super().__init__()
        self._buffers |= {"values": values, "scales": scales}  # thousands are made at once
        self._shape = torch.Size(shape)
        self.dtype = dtype
        self.has_levels = has_levels

    # --- construction -----------------------------------------------------------------------------

    @classmethod
    def from_codes(
        cls,
        codes: Tensor,
        scales: Tensor,
        offsets: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        has_levels: bool = False,
        inputs: int | None = None,
    ) -> BlockWeight:
        """The matrix of packed codes (N, blocks, 4 · bits) uint8, see `pack_codes`, and of scales
        and offsets (N, blocks) float16. inputs: K, by default all columns of the blocks.
        """
        rows, blocks, size = codes.shape
        if inputs is None:
            inputs = BLOCK * blocks
        panels = -(-rows // PANEL)
        kinds = 1 if offsets is None else 2
        values = codes.new_empty(panels, blocks, size // WORD, PANEL, WORD)
        packed = scales.new_empty(panels, blocks, kinds, PANEL)
        # (panels, 16, blocks, words) -> (panels, blocks, words, 16)
        words = _whole_panels(codes).contiguous().view(torch.int32)
        values.view(torch.int32)[..., 0] = words.permute(0, 2, 3, 1)
        for kind, numbers in enumerate((scales, offsets)[:kinds]):
            assert numbers is not None
            packed[:, :, kind] = _whole_panels(numbers).transpose(1, 2)
        return cls(values, packed, (rows, inputs), dtype, has_levels=has_levels)

    @classmethod
    def from_q8_0(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of Q8_0, bytes: a float16 scale and 32 int8."""
        table = blocks.view(shape[0], -1, 34)
        return cls.from_codes(table[..., 2:] ^ 128, _half(table, 0), dtype=dtype)

    @classmethod
    def from_q5_0(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of Q5_0, bytes: a float16 scale, the fifth bits of 32
        codes, and 16 pairs of the others.
        """
        table = blocks.view(shape[0], -1, 22)
        codes = _five_bit_codes(table[..., 2:6], table[..., 6:])
        return cls.from_codes(codes, _half(table, 0), dtype=dtype)

    @classmethod
    def from_q5_1(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of Q5_1, bytes: a float16 scale, a float16 offset, the
        fifth bits of 32 codes, and 16 pairs of the others.
        """
        table = blocks.view(shape[0], -1, 24)
        codes = _five_bit_codes(table[..., 4:8], table[..., 8:])
        return cls.from_codes(codes, _half(table, 0), _half(table, 2), dtype=dtype)

    @classmethod
    def from_q4_0(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of Q4_0, bytes: a float16 scale and 16 pairs of
        codes.
        """
        table = blocks.view(shape[0], -1, 18)
        return cls.from_codes(table[..., 2:], _half(table, 0), dtype=dtype)

    @classmethod
    def from_iq4_nl(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of IQ4_NL, bytes: a float16 scale and 16 pairs of
        codes.
        """
        table = blocks.view(shape[0], -1, 18)
        return cls.from_codes(table[..., 2:], _half(table, 0), dtype=dtype, has_levels=True)

    @classmethod
    def from_q4_1(
        cls, blocks: Tensor, shape: tuple[int, int], dtype: torch.dtype = torch.float32
    ) -> BlockWeight:
        """The matrix of this shape in blocks of Q4_1, bytes: a float16 scale, a float16 offset, and
        16 pairs of codes.
        """
        table = blocks.view(shape[0], -1, 20)
        return cls.from_codes(table[..., 4:], _half(table, 0), _half(table, 2), dtype=dtype)

    @classmethod
    @torch.no_grad()
    def quantize(cls, matrix: Tensor, bits: int, dtype: torch.dtype | None = None) -> BlockWeight:
        """The matrix (N, K) rounded to 8 bits, as llama.cpp's Q8_0, or to 6 or 5 bits or levels of
        4 bits with scales of the smallest square error among a few.

        Raises ValueError for values that are not finite or too large for a float16 scale.
        """
        rows, inputs = matrix.shape
        blocks = blocks_of(inputs)
        code_bytes = BLOCK * bits // 8
        codes = torch.empty(rows, blocks, code_bytes, dtype=torch.uint8, device=matrix.device)
        scales = torch.empty(rows, blocks, dtype=torch.float16, device=matrix.device)
        step = max(1, CHUNK // inputs)
        encode = {8: _eight_bits, 4: _four_bits}.get(bits) or partial(_uniform, bits=bits)
        problem = f"has values that are not finite or too large for {bits} bits"
        for start in range(0, rows, step):
            part = slice(start, start + step)
            x = _whole_blocks(matrix[part].float()).reshape(-1, BLOCK)
            if not x.isfinite().all():
                raise ValueError(problem)
            part_codes, part_scales = encode(x)
            codes[part] = part_codes.view_as(codes[part])
            scales[part] = part_scales.view_as(scales[part])
        if not scales.isfinite().all():
            raise ValueError(problem)
        dtype = dtype or matrix.dtype
        return cls.from_codes(codes, scales, dtype=dtype, has_levels=bits == 4, inputs=inputs)

    # --- a weight ---------------------------------------------------------------------------------

    def _apply(self, change: Any, recurse: bool = True) -> BlockWeight:
        """Move to a device, or change `dtype`; values and scales keep their types."""
        self.dtype = change(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        self.values = change(self.values)
        self.scales = self.scales.to(self.values.device)
        return self

    @property
    def shape(self) -> torch.Size:
        """(N, K)."""
        return self._shape

    @property
    def bits(self) -> int:
        """Of each value: 8, 6, 5 or 4."""
        return self.values.shape[2]

    @property
    def has_offsets(self) -> bool:
        """Whether each block has an offset beside its scale."""
        return self.scales.shape[2] == 2

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        return self._float_rows(slice(None))[: len(self)].to(self.dtype).contiguous()

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        panel = indices // PANEL
        row = indices % PANEL
        codes = self.values[panel, :, :, row]
        return self._floats(codes, self.scales[panel, :, :, row]).to(self.dtype)

    def parts(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The matrix in a type, the panels of about CHUNK values at a time."""
        step = max(1, CHUNK // (PANEL * self.shape[1]))
        for start in range(0, len(self.values), step):
            rows = self._float_rows(slice(start, start + step))
            yield rows[: len(self) - start * PANEL].to(dtype)

    def _float_rows(self, panels: slice) -> Tensor:
        codes = self.values[panels].permute(0, 3, 1, 2, 4)
        scales = self.scales[panels].permute(0, 3, 1, 2)
        return self._floats(codes, scales).flatten(0, 1)

    def _floats(self, codes: Tensor, scales: Tensor) -> Tensor:
        """The values (..., K) in fp32 of codes (..., blocks, words, 4) and of scales and offsets
        (..., blocks, 1 or 2).
        """
        return self._decoded(codes, scales).flatten(-2)[..., : self.shape[1]]

    def _decoded(self, codes: Tensor, scales: Tensor) -> Tensor:
        """The same values by block (..., blocks, 32), in the order of arithmetic of the `gguf`
        package.
        """
        if self.bits < 8:
            nibbles = codes[..., :NIBBLES, :]
            others = codes[..., NIBBLES:, :]
            codes = torch.cat([nibbles & 15, nibbles >> 4], -2)
            for bit in range(4, self.bits):
                own = others[..., bit - 4 : bit - 3, :]
                codes |= ((own >> _word_numbers(codes.device)) & 1) << bit
        if self.has_levels:
            levels = torch.tensor(LEVELS, dtype=torch.float32, device=codes.device)
            numbers = _looked_up(levels, codes.flatten(-2).int())
            return numbers * scales.float()
        numbers = codes.flatten(-2).float()
        if self.has_offsets:
            return numbers * scales[..., :1].float() + scales[..., 1:].float()
        return (numbers - ZERO_CODES[self.bits]) * scales.float()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()} in {self.bits} bits"


def blocks_of(inputs: int) -> int:
    """The blocks of a row of so many columns."""
    return (inputs + BLOCK - 1) // BLOCK


def _whole_blocks(x: Tensor) -> Tensor:
    """x (N, K), with columns of zeros that fill the last block."""
    missing = -x.shape[1] % BLOCK
    if missing:
        x = F.pad(x, (0, missing))
    return x


def _whole_panels(x: Tensor) -> Tensor:
    """x (N, ...) -> (panels, 16, ...), with zeros for the rows that are missing from the last."""
    missing = -len(x) % PANEL
    if missing:
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
    return x.reshape(-1, PANEL, *x.shape[1:])


# --- packed codes ---------------------------------------------------------------------------------


def _swap(upper: int, lower: int) -> tuple[int, int]:
    """How two bits of the numbers of the 32 bits of a word change places: a distance, and those of
    its bits that are moved by it, up and down.
    """
    moved = [n for n in range(BLOCK) if not n >> upper & 1 and n >> lower & 1]
    return 2**upper - 2**lower, sum(1 << number for number in moved)


SWAPS = (_swap(4, 1), _swap(3, 0), _swap(2, 1), _swap(1, 0))


def upper_bits(word: Any) -> Any:
    """The fifth bits of 32 codes, int32, as blocks have them: that of code 4 · w + b, its number in
    the given word, becomes bit w of byte b. One shift then moves those of four codes to their
    places.
    """
    for distance, mask in SWAPS:
        moved = ((word >> distance) ^ word) & mask
        word = word ^ moved ^ (moved << distance)
    return word


def _five_bit_codes(fifth: Tensor, nibbles: Tensor) -> Tensor:
    """The codes (..., 20) of blocks with fifth bits (..., 4) in their order and pairs (..., 16) of
    the others, all bytes.
    """
    words = fifth.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return torch.cat([nibbles, upper_bits(words).view(torch.uint8)], -1)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Codes of 4 to 6 bits (..., 32) uint8 -> (..., 4 · bits): 4 bits of each, those of the first
    16 in the lower halves of bytes, then the fifth bits and the sixth.
    """
    parts = [(codes[..., :16] & 15) | (codes[..., 16:] << 4)]
    for bit in range(4, bits):
        own = ((codes >> bit) & 1).unflatten(-1, (-1, WORD))
        parts.append((own << _word_numbers(codes.device)).sum(-2, dtype=torch.uint8))
    return torch.cat(parts, -1)


def _word_numbers(device: torch.device) -> Tensor:
    """The numbers (8, 1) of the words of 32 codes, which are the places of their upper bits."""
    return torch.arange(BLOCK // WORD, dtype=torch.uint8, device=device)[:, None]


# --- rounding -------------------------------------------------------------------------------------


def _half(table: Tensor, at: int) -> Tensor:
    """A float16 in each block, bytes (..., size) -> (...)."""
    return table[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _inverse(scales: Tensor) -> Tensor:
    """1 / scale (B,), and 0 for those that are 0 or too small."""
    inverse = 1 / scales
    return inverse.masked_fill_(~inverse.isfinite(), 0)


def _eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (B, 32) and scales (B,) of values (B, 32) fp32: the largest magnitude becomes 127."""
    scales = x.abs().amax(1) / 127
    scaled = x * _inverse(scales)[:, None]
    # Half away from zero; half of what is nearly 0.5 is not rounded up.
    whole = scaled.trunc()
    whole += ((scaled - whole) * 2).trunc_()
    return (whole + 128).to(torch.uint8), scales.half()


def _four_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of codes of levels (B, 16) and scales (B,) of values (B, 32) fp32."""
    table = torch.tensor(LEVELS, dtype=torch.float32, device=x.device)
    # What lies between two levels is a multiple of a half.
    numbers = torch.arange(-256, 256, device=x.device) / 2
    nearest = (numbers[:, None] - table).abs().argmin(1)
    level_of = table[nearest]

    def rounded(scales: Tensor) -> Tensor:
        return _looked_up(level_of, _half_steps(x, scales))

    levels, scales = _search(x, rounded, LARGEST)
    codes = _looked_up(nearest.to(torch.uint8), (2 * levels + 256).int())
    return pack_codes(codes, 4), scales


def _uniform(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Packed codes (B, 4 · bits) and scales (B,) of values (B, 32) fp32."""
    zero = ZERO_CODES[bits]

    def rounded(scales: Tensor) -> Tensor:
        return (x * _inverse(scales)).round_().clamp_(-zero, zero - 1)

    trials = (-zero, 0.5 - zero, -zero - 0.5, 1 - zero, zero - 1, zero - 0.5)
    levels, scales = _search(x, rounded, trials)
    return pack_codes((levels + zero).to(torch.uint8), bits), scales


def _search(
    x: Tensor, rounded: Callable[[Tensor], Tensor], trials: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Levels (B, 32) and scales (B,) float16 of values (B, 32) fp32; rounded: the levels of x with
    scales (B, 1).

    Each trial gives the largest value another level and rounds the others with that scale. The best
    trial is the one whose levels have the smallest square error with a scale fitted to them.
    """
    largest = x.gather(1, x.abs().argmax(1, keepdim=True))
    best = torch.full_like(largest, -1)
    scales = torch.zeros_like(largest)
    for level in trials:
        product, square = _moments(rounded(largest / level), x)
        gain = product * product / square  # by which the fitted scale lowers the square error
        is_better = gain > best
        best = torch.where(is_better, gain, best)
        scales = torch.where(is_better, product / square, scales)
    levels = rounded(scales)
    product, square = _moments(levels, x)
    return levels, (product / square)[:, 0].half()


def _half_steps(x: Tensor, scales: Tensor) -> Tensor:
    """The nearest integers to 2 · x (B, 32) / scale in -256 … 255, plus 256. x is finite."""
    return (x * _inverse(scales / 2)).round_().clamp_(-256, 255).add_(256).int()


def _looked_up(table: Tensor, indices: Tensor) -> Tensor:
    """table[indices], in a quarter of the time."""
    return table.index_select(0, indices.flatten()).view_as(indices)


def _moments(levels: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Σ level · x and Σ level² of each block, (B, 1). Where all levels are 0, the second is 1."""
    square = (levels * levels).sum(1, keepdim=True)
    return (levels * x).sum(1, keepdim=True), square.clamp_min_(1)
