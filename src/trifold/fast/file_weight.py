"""Weights in the memory of a GGUF file, in the blocks that the file has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from trifold.fast.block_weight import CHUNK, PANEL, BlockWeight
from trifold.fast.instruction import (
    AS_STORED,
    BLOCK4,
    BLOCK4_LEVELS,
    BLOCK4_OFFSETS,
    BLOCK5,
    BLOCK5_OFFSETS,
    BLOCK8,
    BLOCK_KINDS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    BlockKind,
)

Reader = Callable[[Tensor, tuple[int, int]], BlockWeight]


class FileBlocks(NamedTuple):
    """Blocks of a type of tensors: their kind in memory, `stored` of instructions that read them,
    and the bytes and the values of a block of the file.
    """

    kind: int
    stored: int
    bytes: int
    length: int


# The types of GGUF files that compiled code reads.
KINDS = {
    "Q8_0": FileBlocks(BLOCK8, AS_STORED, 34, 32),
    "Q5_0": FileBlocks(BLOCK5, AS_STORED, 22, 32),
    "Q5_1": FileBlocks(BLOCK5_OFFSETS, AS_STORED, 24, 32),
    "Q4_0": FileBlocks(BLOCK4, AS_STORED, 18, 32),
    "Q4_1": FileBlocks(BLOCK4_OFFSETS, AS_STORED, 20, 32),
    "IQ4_NL": FileBlocks(BLOCK4_LEVELS, AS_STORED, 18, 32),
    "Q4_K": FileBlocks(BLOCK4_OFFSETS, Q4_K, 144, 256),
    "Q5_K": FileBlocks(BLOCK5_OFFSETS, Q5_K, 176, 256),
    "Q6_K": FileBlocks(BLOCK8, Q6_K, 210, 256),
    "Q3_K": FileBlocks(BLOCK8, Q3_K, 110, 256),
    "Q2_K": FileBlocks(BLOCK8, Q2_K, 84, 256),
    "MXFP4": FileBlocks(BLOCK8, MXFP4, 17, 32),
}


class FileRows(NamedTuple):
    """Some rows of a tensor of a file.

    table: (rows, bytes of a row) uint8, contiguous. order: which rows, (N,) int64; None: all.
    kind: the name of their type. read: how operators lay out rows of it in the order of memory.
    """

    table: Tensor
    order: Tensor | None
    kind: str
    read: Reader

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K) of the values."""
        blocks = KINDS[self.kind]
        rows = len(self.table) if self.order is None else len(self.order)
        return rows, self.table.shape[1] // blocks.bytes * blocks.length

    @property
    def block_kind(self) -> BlockKind:
        """The kind of the blocks in memory."""
        return BLOCK_KINDS[KINDS[self.kind].kind]


EXISTING: WeakSet[FileWeight] = WeakSet()  # those that have not been freed


class FileWeight(BlockWeight):
    """A `BlockWeight` whose rows stay in the memory of a file, which is mapped and not copied.

    Compiled code lays out 16 rows at a time in a cache, whenever it reads them; operators some
    more. Results have the same bits as those of the laid out weight. Each decoding step reads every
    weight again; `block_layout` therefore lays them out before the first one.

    dtype: the type of the results.
    """

    table: Tensor
    order: Tensor | None

    def __init__(self, rows: FileRows, dtype: torch.dtype) -> None:
        torch.nn.Module.__init__(self)
        self._buffers |= {"table": rows.table, "order": rows.order}  # thousands are made at once
        self._shape = torch.Size(rows.shape)
        self.dtype = dtype
        self.stored = rows.kind
        self.read = rows.read
        self.kind = rows.block_kind
        self.has_levels = self.kind.has_levels
        EXISTING.add(self)

    def _apply(self, change: Any, recurse: bool = True) -> FileWeight:
        """Move to a device, or change `dtype`; blocks keep their type."""
        self.dtype = change(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(change(tensor).device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the memory of the matrix is."""
        return self.table.device

    @property
    def bits(self) -> int:
        """Of each value: 8, 5 or 4."""
        return self.kind.bits

    @property
    def has_offsets(self) -> bool:
        """Whether each block has an offset beside its scale."""
        return self.kind.has_offsets

    @property
    def file_rows(self) -> FileRows:
        """What it was made of."""
        return FileRows(self.table, self.order, self.stored, self.read)

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        return torch.cat([*self.parts(self.dtype)])

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        return self._laid_out(indices.flatten()).dequantize().view(*indices.shape, -1)

    def parts(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The matrix in a type, about CHUNK values at a time."""
        step = max(1, CHUNK // (PANEL * self.shape[1])) * PANEL
        for start in range(0, len(self), step):
            yield from self._laid_out(slice(start, start + step)).parts(dtype)

    def _laid_out(self, rows: slice | Tensor) -> BlockWeight:
        """Some of the rows in memory of their own."""
        numbers = rows if self.order is None else self.order[rows]
        table = self.table[numbers].contiguous()
        made = self.read(table, (len(table), self.shape[1]))
        made.dtype = self.dtype
        return made
