"""Reads 16 rows of the blocks of a GGUF file as a panel of `BlockWeight`.

A file has the blocks of a row one after the other, a panel has those of 16 rows side by side. The
words of 16 rows are transposed in registers, which takes less time than reading them from memory.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE, blocks_of, by_kind
from trifold.fast.block_weight import BLOCK, NIBBLES, PANEL, SWAPS, WORD
from trifold.fast.instruction import BlockKind
from trifold.fast.intrinsics import allocate, bfloat16_at, int32_at, int64_at, release
from trifold.fast.loops import subroutine
from trifold.fast.vector_code import LONG_TYPE, WORD_TYPE, WORDS, VectorCode, words

SIGNS = -0x7F7F7F80  # 0x80 in four bytes: int8 -> codes whose zero is 128
_SHORTS = ir.VectorType(ir.IntType(16), PANEL)
HALF_BYTES = 2  # of a scale or an offset
_FOURS = range(0, PANEL, 4)


class RowCode(VectorCode):
    """LLVM code that reads the blocks of a kind, of 16 rows.

    A block of a file is its scale, its offset if it has one, and its codes. Those of 5 bits are
    first the fifth bits in the order of the codes, then 4 bits of each.
    """

    def __init__(self, builder: Any, kind: BlockKind) -> None:
        super().__init__(builder)
        self.kind = kind
        self.numbers_bytes = HALF_BYTES * (1 + kind.has_offsets)
        self.bytes = self.numbers_bytes + BLOCK * kind.bits // 8

    def emit(self, places: Any, blocks: Any, values: Any, scales: Any, ahead: Any) -> None:
        """A loop over blocks; the arguments are those of `new_row_reader`."""
        starts = [self.load(places, LONG_TYPE, 8 * lane) for lane in range(PANEL)]
        lines = -(-PANEL * self.bytes // LINE)

        def read_block(block: Any, results: list[Any]) -> list[Any]:
            for line in range(lines):
                self.prefetch(self.moved(ahead, block, PANEL * self.bytes), LINE * line)
            rows = [self.moved(start, block, self.bytes) for start in starts]
            place = self.moved(values, block, LINE * self.kind.bits)
            for number, codes in enumerate(self.words(rows)):
                self.store(place, LINE * number, codes)
            numbers = self.column(rows, 0)
            place = self.moved(scales, block, PANEL * self.numbers_bytes)
            self.store(place, 0, self.builder.trunc(numbers, _SHORTS))
            if self.kind.has_offsets:
                offsets = self.builder.lshr(numbers, words(16))
                self.store(place, PANEL * HALF_BYTES, self.builder.trunc(offsets, _SHORTS))
            return results

        self.loop(blocks, [], read_block)

    def words(self, rows: Sequence[Any]) -> list[Any]:
        """The words of a block of a panel, of the blocks at 16 addresses."""
        first = self.numbers_bytes
        if self.kind.bits == 8:
            return [self.builder.xor(each, words(SIGNS)) for each in self.eight_words(rows, first)]
        places = range(first, first + WORD * (self.kind.bits - NIBBLES), WORD)
        upper = [self.upper_bits(self.column(rows, place)) for place in places]
        return self.four_words(rows, first + WORD * len(upper)) + upper

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

    def upper_bits(self, column: Any) -> Any:
        """See `block_weight.upper_bits`."""
        builder = self.builder
        for distance, mask in SWAPS:
            moved = builder.xor(builder.lshr(column, words(distance)), column)
            moved = builder.and_(moved, words(mask))
            column = builder.xor(column, moved)
            column = builder.xor(column, builder.shl(moved, words(distance)))
        return column


def new_row_reader(kind: BlockKind) -> Any:
    """A function read(places, blocks, values, scales, ahead): 16 rows of a file, whose addresses
    are at `places`, become the values and scales of a panel, at addresses. Meanwhile the memory at
    `ahead` is prefetched, which is that of the next 16 rows.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        RowCode(builder, kind).emit(*arguments)
        return context.get_dummy_value()

    @intrinsic
    def read(typing: Any, places: Any, blocks: Any, values: Any, scales: Any, ahead: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return read


_read = by_kind(new_row_reader)


# --- panels ---------------------------------------------------------------------------------------


@subroutine
def numbers_of(op: Any) -> Any:
    """The numbers of a block beside its codes: its scale, and the offset if it has one."""
    return 2 if ins.ZERO_CODES[op.dtype] == 0 else 1


@subroutine
def value_bytes(op: Any) -> Any:
    """The size of the values of a panel."""
    return blocks_of(op.inputs) * LINE * ins.BLOCK_BITS[op.dtype]


@subroutine
def scale_bytes(op: Any) -> Any:
    """The size of the scales of a panel."""
    return blocks_of(op.inputs) * PANEL * HALF_BYTES * numbers_of(op)


@subroutine
def find_rows(op: Any, panel: int, count: int, memory: int) -> None:
    """The addresses (16,) of the rows of a panel, of a weight of `count` rows in the memory of a
    file; the last row again for those that are missing.

    op: its `weight` has the first row, rows are `row_stride` bytes apart. Its `scales` has the
    numbers of the rows, 0 for those in order.
    """
    places = int64_at(memory, PANEL)
    first = PANEL * panel
    for lane in range(PANEL):
        row = min(first + lane, count - 1)
        if op.scales != 0:
            row = int64_at(op.scales, count)[row]
        places[lane] = op.weight + row * op.row_stride


@subroutine
def read_rows(op: Any, panel: int, count: int, values: int, scales: int) -> None:
    """The rows of a panel (see `find_rows`) become values and scales at addresses."""
    memory = allocate(8 * PANEL)
    find_rows(op, panel, count, memory)
    ahead = int64_at(memory, PANEL)[0] + PANEL * op.row_stride
    _read(op.dtype, memory, blocks_of(op.inputs), values, scales, ahead)
    release(memory)
    for lane in range(count - PANEL * panel, PANEL):
        clear_lane(op, values, scales, lane)


@subroutine
def clear_lane(op: Any, values: int, scales: int, lane: int) -> None:
    """Zeros for a row that is missing from the last panel."""
    codes = int32_at(values, value_bytes(op) // WORD)
    for place in range(lane, codes.shape[0], PANEL):
        codes[place] = 0
    numbers = bfloat16_at(scales, scale_bytes(op) // HALF_BYTES)
    for place in range(lane, numbers.shape[0], PANEL):
        numbers[place] = 0


@subroutine
def panel_memory(op: Any) -> Any:
    """The address of new memory for a panel of rows of a file; 0 for a weight in panels."""
    if op.row_stride == 0:
        return 0
    return allocate(value_bytes(op) + scale_bytes(op))


@subroutine
def panel_values(op: Any, panel: int, count: int, memory: int) -> Any:
    """The address of the values of a panel of a weight of `count` rows, of which those of a file
    become a panel in this memory.
    """
    if op.row_stride == 0:
        return op.weight + panel * value_bytes(op)
    read_rows(op, panel, count, memory, memory + value_bytes(op))
    return memory


@subroutine
def panel_scales(op: Any, panel: int, memory: int) -> Any:
    """The address of the scales of a panel, after `panel_values`."""
    if op.row_stride == 0:
        return op.scales + panel * scale_bytes(op)
    return memory + value_bytes(op)


@subroutine
def release_panel(memory: int) -> None:
    """Free what `panel_memory` has allocated."""
    if memory != 0:
        release(memory)
