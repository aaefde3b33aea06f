"""Matrices of a GGUF file in the types that a model computes with, without decoding them.

The rules of a family move the rows of a matrix: they reorder those of queries and keys, or split a
matrix. Where each row goes is found by applying the rules to the numbers of the rows. What rules
change in another way is decoded instead. How the types of a file are stored:

    Q8_0, Q5_0, Q5_1, Q4_0, Q4_1, IQ4_NL  as they are
    Q5_K, Q4_K          in 5 or 4 bits with offsets; products of two scales are rounded to float16
    others in blocks    rounded to 8 bits, as Q8_0
    numbers             as they are, if the model computes with their type; BF16 and F16 in float32,
                        too

Numbers, and blocks of the types that compiled code reads, are in the memory of the file; blocks
until the first decoding step.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.fast.block_layout import BlockLayout, can_lay_out
from trifold.fast.block_weight import PANEL, BlockWeight, pack_codes
from trifold.fast.file_weight import KINDS, FileRows, Reader
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.huge_pages import ALIGNMENT, HugeMemory
from trifold.fast.instruction import BLOCK_KINDS, BlockKind
from trifold.fast.quantized_weight import Weight
from trifold.hub.gguf.blocks import BlockType, codes_of_q5_k, dequantize, scales_of_groups
from trifold.hub.gguf.file_format import TensorEntry
from trifold.hub.rules import Route
from trifold.hub.tensors import TransformedTensors

CHUNK = 2**19  # values of a matrix that are laid out at a time, to bound the memory of copies
# Row n of a table of numbers: n, n + 0.25, and twice these. A rule that does not move whole rows
# gives numbers that do not belong together.
FACTORS = torch.tensor([1, 1, 2, 2], dtype=torch.float64)
OFFSETS = torch.tensor([0, 0.25, 0, 0.5], dtype=torch.float64)
COLUMNS = len(FACTORS)
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}  # NumPy has no bf16

Move = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
NONE: Mapping[str, Any] = MappingProxyType({})


# --- where the rows go ----------------------------------------------------------------------------


class StoredMatrix(NamedTuple):
    """A tensor of a file, whose first axes are rows.

    raw: its bytes. first: the number of its first row among those of all tensors.
    """

    entry: TensorEntry
    raw: Callable[[], Tensor]
    first: int

    @property
    def rows(self) -> int:
        return prod(self.entry.shape[:-1])

    def is_kept(self, dtype: torch.dtype) -> bool:
        """Whether a computation of that type reads the matrix in the type of the file."""
        stored = self.entry.kind.dtype
        is_widened = stored in STORED and dtype is torch.float32
        return stored in (None, dtype) or is_widened

    def part_of(self, table: Tensor) -> Tensor:
        """The rows in a table of all rows, (…, COLUMNS) in place of (…, K)."""
        own = table[self.first : self.first + self.rows]
        if len(self.entry.shape) == 2:
            return own
        return own.view(*self.entry.shape[:-1], COLUMNS)

    def numbers(self) -> Tensor:
        """The rows in the table of numbers, (…, COLUMNS)."""
        rows = torch.arange(self.first, self.first + self.rows)
        return _numbered(rows).view(*self.entry.shape[:-1], COLUMNS)


def stored_matrices(
    entries: Mapping[str, TensorEntry], raw: Callable[[str], Tensor]
) -> Mapping[str, StoredMatrix]:
    """The tensors with rows among those of a file; raw: the bytes of a tensor."""
    found: dict[str, StoredMatrix] = {}
    first = 0
    for name, entry in entries.items():
        if len(entry.shape) > 1:
            found[name] = StoredMatrix(entry, partial(raw, name), first)
            first += found[name].rows
    return found


class MovedRows(NamedTuple):
    """Rows of a quantized tensor, by their numbers in it: a matrix of ours."""

    matrix: StoredMatrix
    order: Tensor | slice

    @property
    def table(self) -> Tensor:
        """The bytes of all rows of the tensor."""
        return self.matrix.raw().view(self.matrix.rows, -1)


def moved_matrices(
    stored: Mapping[str, StoredMatrix],
    move: Move,
    shapes: Mapping[str, torch.Size],
    routes: Mapping[str, Route] = NONE,
) -> dict[str, MovedRows]:
    """The matrices among those with these shapes that are rows of one tensor of the file.

    move: makes tensors by our names from those by the names of the file. routes: how it makes them;
        one of those that are made alike is looked at.
    """
    find = _finder(stored, move)
    found: dict[str, MovedRows] = {}
    known: dict[Hashable, tuple[int, Tensor | slice] | None] = {}
    for name, shape in shapes.items():
        theirs = routes[name].theirs if name in routes else ()
        sources = [stored[each] for each in theirs if each in stored]
        if not sources or len(sources) < len(theirs):
            rows = find(name, shape)
            if rows is not None:
                found[name] = rows
            continue
        key = (shape, routes[name].way, *(each.entry.shape for each in sources))
        if key not in known:
            rows = find(name, shape)
            known[key] = None if rows is None else (sources.index(rows.matrix), rows.order)
        if (place := known[key]) is not None:
            found[name] = MovedRows(sources[place[0]], place[1])
    return found


def _finder(
    stored: Mapping[str, StoredMatrix], move: Move
) -> Callable[[str, torch.Size], MovedRows | None]:
    """A function that returns the rows of a matrix by name and shape, if it has rows of one tensor;
    see `moved_matrices`.
    """
    in_order = list(stored.values())
    starts = [matrix.first for matrix in in_order]
    # Most rules move nothing: their results are parts of this table, which has no values.
    count = in_order[-1].first + in_order[-1].rows if in_order else 0
    table = torch.empty(count, COLUMNS, dtype=torch.int8)

    def move_all(make: Callable[[StoredMatrix], Tensor]) -> Mapping[str, Tensor]:
        return move(TransformedTensors(stored, lambda name, matrix: make(matrix)))

    same = move_all(lambda matrix: matrix.part_of(table))
    moved = move_all(StoredMatrix.numbers)

    def find(name: str, shape: torch.Size) -> MovedRows | None:
        count, width = shape
        try:
            rows = _rows_in_order(table, same[name], count) or _moved_rows(moved[name], count)
        except (KeyError, IndexError, RuntimeError, ValueError):
            return None
        if rows is None:
            return None
        start = rows.start if isinstance(rows, slice) else int(rows[0])
        matrix = in_order[bisect_right(starts, start) - 1]
        order = _inside(matrix, rows)
        if order is None or matrix.entry.shape[-1] != width:
            return None
        return MovedRows(matrix, order)

    return find


def _numbered(rows: Tensor) -> Tensor:
    """Rows (N,) of the table of numbers."""
    return rows[:, None] * FACTORS + OFFSETS


def _rows_in_order(table: Tensor, found: Tensor, count: int) -> slice | None:
    """The rows of the table whose memory this is."""
    is_part = found.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
    if not is_part or found.shape != (count, COLUMNS) or found.stride() != (COLUMNS, 1):
        return None
    start, column = divmod(int(found.storage_offset()), COLUMNS)
    return None if column else slice(start, start + count)


def _moved_rows(found: Tensor, count: int) -> Tensor | slice | None:
    """The numbers (count,) of the rows of a matrix of ours; None if it is made in another way."""
    if found.shape != (count, COLUMNS):
        return None
    rows = found[:, 0].long()
    return rows if torch.equal(found, _numbered(rows)) else None


def _inside(matrix: StoredMatrix, rows: Tensor | slice) -> Tensor | slice | None:
    """The rows by their numbers in a tensor; None if some are not in it."""
    if isinstance(rows, slice):
        own = slice(rows.start - matrix.first, rows.stop - matrix.first)
        return own if own.stop <= matrix.rows else None
    moved = rows - matrix.first
    if not 0 <= int(moved.min()) <= int(moved.max()) < matrix.rows:
        return None
    return _as_slice(moved)


def _as_slice(rows: Tensor) -> Tensor | slice:
    """The rows, or the slice that they are."""
    first = int(rows[0])
    whole = slice(first, first + len(rows))
    return whole if torch.equal(rows, torch.arange(whole.start, whole.stop)) else rows


# --- layout ---------------------------------------------------------------------------------------


def lay_out(
    matrices: Mapping[str, MovedRows],
    dtype: torch.dtype,
    memory: HugeMemory | None = None,
    *,
    in_place: bool = False,
) -> tuple[dict[str, Weight], Callable[[], None]]:
    """The matrices by name, for results of `dtype`: in blocks, or numbers of that type or in 16
    bits, which share memory with the file if their order is that of the file. Other threads lay out
    blocks: the second result must be called before they are read, and may be called again.

    in_place: blocks stay in the memory of the file, if compiled code reads them.

    Both functions raise ValueError, which begins with the name, for values that have no scale.
    """
    memory = memory or HugeMemory()
    found: dict[str, Weight] = {}
    layout: BlockLayout | None = None
    if can_lay_out():
        compiled = {name: each for name, each in matrices.items() if _kind(each) in KINDS}
        if compiled:
            sources = [_file_rows(each) for each in compiled.values()]
            layout = BlockLayout(sources, dtype, memory, in_place=in_place)
            found |= zip(compiled, layout.weights, strict=True)
    for name, each in matrices.items():
        stored = each.matrix.entry.kind.dtype
        if stored is dtype:
            found[name] = _numbers_of(each, dtype, memory)
        elif stored is not None:
            found[name] = HalfWeight(_numbers_of(each, stored, memory), dtype)
        elif name not in found:
            try:
                weight = _lay_out(each, dtype)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            _check_finite(name, bool(weight.scales.isfinite().all()))
            found[name] = weight

    def finish() -> None:
        if layout is not None:
            for name, is_finite in zip(compiled, layout.finish(), strict=True):
                _check_finite(name, is_finite)

    return found, finish


def needed_bytes(entries: Mapping[str, TensorEntry], changed: Collection[str]) -> int:
    """The memory of a model that keeps the types of its file, beside that of the file: of tensors
    that rules change, which compiled code does not read there.
    """
    sizes = [
        entry.end - entry.start
        for name, entry in entries.items()
        if name in changed and entry.kind.name not in KINDS
    ]
    return sum(sizes) + 2 * ALIGNMENT * len(sizes)


def _numbers_of(rows: MovedRows, dtype: torch.dtype, memory: HugeMemory) -> Tensor:
    """A matrix of numbers of this type; in another order, as a copy in this memory."""
    raw = rows.matrix.raw()
    if raw.data_ptr() % dtype.itemsize:  # the alignment of a file may be 1
        raw = raw.clone()
    table = raw.view(dtype).view(rows.matrix.rows, -1)
    if isinstance(rows.order, slice):
        return table[rows.order]
    copy = memory.empty((len(rows.order), table.shape[1]), dtype)
    # On this thread: those of PyTorch would wait for a core, which maps the pages of the file.
    source, target = (each.view(_INTEGERS[dtype.itemsize]).numpy() for each in (table, copy))
    np.take(source, rows.order.numpy(), axis=0, out=target, mode="clip")
    return copy


def _kind(rows: MovedRows) -> str:
    """The name of the type of the tensor."""
    return rows.matrix.entry.kind.name


def _file_rows(rows: MovedRows) -> FileRows:
    table = rows.table
    order = rows.order
    read = reader_of(rows.matrix.entry.kind)
    if isinstance(order, slice):
        return FileRows(table[order], None, _kind(rows), read)
    return FileRows(table, order, _kind(rows), read)


def _check_finite(name: str, is_finite: bool) -> None:
    if not is_finite:
        raise ValueError(f"{name}: has scales that are not finite")


def _lay_out(rows: MovedRows, dtype: torch.dtype) -> BlockWeight:
    """A matrix in blocks, some rows at a time."""
    kind = rows.matrix.entry.kind
    inputs = rows.matrix.entry.shape[-1]
    table = rows.table
    order = rows.order
    if isinstance(order, slice):
        table = table[order]
        order = torch.arange(len(table))
    step = max(1, CHUNK // inputs // PANEL) * PANEL
    read = reader_of(kind)
    # Before the copies, which leave no holes below it when they are freed.
    whole = _allocate(read(table[order[:1]], (1, inputs)), len(order), inputs, dtype)
    for start in range(0, len(order), step):
        part_rows = order[start : start + step]
        part = read(table[part_rows], (len(part_rows), inputs))
        panels = slice(start // PANEL, start // PANEL + len(part.values))
        whole.values[panels] = part.values
        whole.scales[panels] = part.scales
    return whole


def _allocate(part: BlockWeight, rows: int, inputs: int, dtype: torch.dtype) -> BlockWeight:
    """Memory for a matrix with blocks like those of `part`."""
    panels = -(-rows // PANEL)
    values = part.values.new_empty(panels, *part.values.shape[1:])
    scales = part.scales.new_empty(panels, *part.scales.shape[1:])
    return BlockWeight(values, scales, (rows, inputs), dtype, has_levels=part.has_levels)


def _rounded(kind: BlockType, raw: Tensor, shape: tuple[int, int]) -> BlockWeight:
    return BlockWeight.quantize(dequantize(raw, kind).view(shape), 8)


def _q4_k(raw: Tensor, shape: tuple[int, int]) -> BlockWeight:
    """Eight blocks of 32 values each, d · s · q - e · n."""
    table = raw.view(-1, 144)
    low = table[:, 16:].unflatten(1, (4, 32))  # of two blocks, in the halves of bytes
    codes = torch.stack([low & 15, low >> 4], 2).flatten(1, 2)  # (N, 8, 32)
    return _of_groups(table, pack_codes(codes, 4), shape[0])


def _q5_k(raw: Tensor, shape: tuple[int, int]) -> BlockWeight:
    """The same with codes of 5 bits."""
    table = raw.view(-1, 176)
    return _of_groups(table, pack_codes(codes_of_q5_k(table), 5), shape[0])


def _of_groups(table: Tensor, codes: Tensor, rows: int) -> BlockWeight:
    """Rows of blocks of 256, bytes (N, …), with packed codes (N, 8, …)."""
    scales, offsets = scales_of_groups(table)
    numbers = (scales.half().view(rows, -1), offsets.half().view(rows, -1))
    return BlockWeight.from_codes(codes.reshape(rows, -1, codes.shape[-1]), *numbers)


_READERS: dict[str, Reader] = {
    "Q8_0": BlockWeight.from_q8_0,
    "Q5_0": BlockWeight.from_q5_0,
    "Q5_1": BlockWeight.from_q5_1,
    "Q4_0": BlockWeight.from_q4_0,
    "Q4_1": BlockWeight.from_q4_1,
    "IQ4_NL": BlockWeight.from_iq4_nl,
    "Q5_K": _q5_k,
    "Q4_K": _q4_k,
}


def block_kind(kind: BlockType) -> BlockKind:
    """The blocks in memory of a quantized type of a file; most are rounded to 8 bits."""
    if kind.name not in KINDS:
        return BlockKind(8)
    return BLOCK_KINDS[KINDS[kind.name].kind]


def reader_of(kind: BlockType) -> Reader:
    """How operators lay out rows of a type."""
    return _READERS.get(kind.name, partial(_rounded, kind))
