"""LLVM code that reads 16 rows of the blocks of a GGUF file as a panel of `BlockWeight`.

A file has the blocks of a row one after the other, a panel has those of 16 rows side by side. The
words of 16 rows are transposed in registers, which takes less time than reading them from memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_tile import LINE
from trifold.fast.block_weight import BLOCK, NIBBLES, PANEL, SWAPS, WORD
from trifold.fast.instruction import BlockKind
from trifold.fast.vector_code import LONG_TYPE, WORD_TYPE, WORDS, VectorCode, words

SIGNS = -0x7F7F7F80  # 0x80 in four bytes: int8 -> codes whose zero is 128
SHORTS = ir.VectorType(ir.IntType(16), PANEL)
HALF_BYTES = 2  # of a scale or an offset
INFINITE = 0x7C00  # the exponent of fp16 numbers that are not finite
_FOURS = range(0, PANEL, 4)


class RowCode(VectorCode, ABC):
    """Code that reads a type of the blocks of a file, of 16 rows.

    kind: of the blocks of the panel, of 32 values each. value_bytes, scale_bytes: the sizes of a
    block there, of all rows. bytes, length: the size of a block of the file, and its values.
    """

    length = BLOCK

    def __init__(self, builder: Any, kind: BlockKind) -> None:
        super().__init__(builder)
        self.kind = kind
        self.numbers_bytes = HALF_BYTES * (1 + kind.has_offsets)
        self.value_bytes = LINE * kind.bits
        self.scale_bytes = PANEL * self.numbers_bytes

    @property
    @abstractmethod
    def bytes(self) -> int:
        """See above."""

    @abstractmethod
    def lay_out(self, rows: Sequence[Any], values: Any, scales: Any) -> None:
        """A block of the file, of the rows at 16 addresses -> values and scales at addresses."""

    def emit(self, places: Any, blocks: Any, values: Any, scales: Any, ahead: Any) -> None:
        """A loop over blocks; the arguments are those of `new_row_reader`."""
        starts = [self.load(places, LONG_TYPE, 8 * lane) for lane in range(PANEL)]
        lines = -(-PANEL * self.bytes // LINE)
        count = self.length // BLOCK

        def read_block(block: Any, results: list[Any]) -> list[Any]:
            for line in range(lines):
                self.prefetch(self.moved(ahead, block, PANEL * self.bytes), LINE * line)
            rows = [self.moved(start, block, self.bytes) for start in starts]
            own_values = self.moved(values, block, count * self.value_bytes)
            own_scales = self.moved(scales, block, count * self.scale_bytes)
            self.lay_out(rows, own_values, own_scales)
            return results

        self.loop(blocks, [], read_block)

    def column(self, rows: Sequence[Any], at: int) -> Any:
        """A word of each row."""
        column = ir.Constant(WORDS, ir.Undefined)
        for lane, row in enumerate(rows):
            word = self.load(row, WORD_TYPE, at)
            column = self.builder.insert_element(column, word, ir.Constant(WORD_TYPE, lane))
        return column

    def four_words(self, rows: Sequence[Any], at: int) -> list[Any]:
        """Four words of each row, a vector for each word."""
        kind = ir.VectorType(WORD_TYPE, 4)
        parts = []
        for first in range(4):
            some = [self.load(rows[first + four], kind, at) for four in _FOURS]
            parts.append(self.joined(self.joined(some[0], some[1]), self.joined(some[2], some[3])))
        return self.transposed(parts)

    def eight_words(self, rows: Sequence[Any], at: int) -> list[Any]:
        """The same of eight words."""
        kind = ir.VectorType(WORD_TYPE, 8)
        both = []
        for first in (0, 8):
            starts = [(rows[n], rows[n + 4]) for n in range(first, first + 4)]
            pairs = [[self.load(each, kind, at) for each in pair] for pair in starts]
            both.append(self.transposed([self.joined(*pair) for pair in pairs]))
        found = []
        for start in (0, 4):
            lanes = [start + lane for lane in (0, 1, 2, 3, 8, 9, 10, 11)]
            lanes += [PANEL + lane for lane in lanes]
            found += [self.shuffled(one, other, lanes) for one, other in zip(*both, strict=True)]
        return found

    def transposed(self, rows: Sequence[Any]) -> list[Any]:
        """Four vectors -> four. Of each four words, the first result has the first word of all
        vectors, the second one the second word, and so on.
        """
        found = []
        for half in (0, 2):
            one = self.interleaved(rows[0], rows[1], half, 1)
            other = self.interleaved(rows[2], rows[3], half, 1)
            found += [self.interleaved(one, other, first, 2) for first in (0, 2)]
        return found

    def interleaved(self, one: Any, other: Any, first: int, size: int) -> Any:
        """Of each four words of two vectors, the two from `first` on, in turn `size` at a time."""
        lanes = []
        for four in _FOURS:
            for start in range(four + first, four + first + 2, size):
                own = list(range(start, start + size))
                lanes += own + [PANEL + lane for lane in own]
        return self.shuffled(one, other, lanes)

    def joined(self, one: Any, other: Any) -> Any:
        """The words of one vector, then those of the other."""
        return self.shuffled(one, other, list(range(2 * one.type.count)))


class StoredCode(RowCode):
    """Of blocks of 32 values.

    A block is its scale, its offset if it has one, and its codes. Those of 5 bits are first the
    fifth bits in the order of the codes, then 4 bits of each.
    """

    @property
    def bytes(self) -> int:
        """Of 32 values."""
        return self.numbers_bytes + BLOCK * self.kind.bits // 8

    def lay_out(self, rows: Sequence[Any], values: Any, scales: Any) -> None:
        """See `RowCode`."""
        for number, codes in enumerate(self.words(rows)):
            self.store(values, LINE * number, codes)
        numbers = self.column(rows, 0)
        self.store(scales, 0, self.builder.trunc(numbers, SHORTS))
        if self.kind.has_offsets:
            offsets = self.builder.lshr(numbers, words(16))
            self.store(scales, PANEL * HALF_BYTES, self.builder.trunc(offsets, SHORTS))

    def words(self, rows: Sequence[Any]) -> list[Any]:
        """The words of a block of a panel, of the blocks at 16 addresses."""
        first = self.numbers_bytes
        if self.kind.bits == 8:
            return [self.builder.xor(each, words(SIGNS)) for each in self.eight_words(rows, first)]
        places = range(first, first + WORD * (self.kind.bits - NIBBLES), WORD)
        upper = [self.upper_bits(self.column(rows, place)) for place in places]
        return self.four_words(rows, first + WORD * len(upper)) + upper

    def upper_bits(self, column: Any) -> Any:
        """See `block_weight.upper_bits`."""
        builder = self.builder
        for distance, mask in SWAPS:
            moved = builder.xor(builder.lshr(column, words(distance)), column)
            moved = builder.and_(moved, words(mask))
            column = builder.xor(column, moved)
            column = builder.xor(column, builder.shl(moved, words(distance)))
        return column


def new_row_reader(code: type[RowCode], kind: BlockKind) -> Any:
    """A function read(places, blocks, values, scales, ahead): 16 rows of a file, whose addresses
    are at `places`, become the values and scales of a panel, at addresses. Meanwhile the memory at
    `ahead` is prefetched, which is that of the next 16 rows.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code(builder, kind).emit(*arguments)
        return context.get_dummy_value()

    @intrinsic
    def read(typing: Any, places: Any, blocks: Any, values: Any, scales: Any, ahead: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return read
