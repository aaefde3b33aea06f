"""Lays out many matrices of a GGUF file at once, on other threads and in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, enabled
from trifold.fast.block_weight import BLOCK, PANEL, WORD, BlockWeight, blocks_of
from trifold.fast.huge_pages import HugeMemory
from trifold.fast.instruction import (
    AS_STORED,
    BLOCK4,
    BLOCK4_LEVELS,
    BLOCK4_OFFSETS,
    BLOCK5,
    BLOCK5_OFFSETS,
    BLOCK8,
    BLOCK_KINDS,
    BLOCK_LAYOUT,
    INSTRUCTION,
    OF_GROUPS,
    ROUNDED_GROUPS,
    BlockKind,
)
from trifold.fast.thread_pool import (
    Array,
    Execution,
    divide_into_tasks,
    thread_count,
)


class FileBlocks(NamedTuple):
    """Blocks of a type of tensors: their kind in memory, how they become that (`mode` of
    BLOCK_LAYOUT), and the bytes and the values of a block of the file.
    """

    kind: int
    mode: int
    bytes: int
    length: int


# The types of GGUF files that compiled code lays out.
KINDS = {
    "Q8_0": FileBlocks(BLOCK8, AS_STORED, 34, 32),
    "Q5_0": FileBlocks(BLOCK5, AS_STORED, 22, 32),
    "Q5_1": FileBlocks(BLOCK5_OFFSETS, AS_STORED, 24, 32),
    "Q4_0": FileBlocks(BLOCK4, AS_STORED, 18, 32),
    "Q4_1": FileBlocks(BLOCK4_OFFSETS, AS_STORED, 20, 32),
    "IQ4_NL": FileBlocks(BLOCK4_LEVELS, AS_STORED, 18, 32),
    "Q4_K": FileBlocks(BLOCK4_OFFSETS, OF_GROUPS, 144, 256),
    "Q5_K": FileBlocks(BLOCK5_OFFSETS, OF_GROUPS, 176, 256),
    "Q6_K": FileBlocks(BLOCK8, ROUNDED_GROUPS, 210, 256),
}


class FileRows(NamedTuple):
    """Some rows of a tensor of a file.

    table: (rows, bytes of a row) uint8, contiguous. order: which rows, (N,) int64; None: all.
    kind: the name of their type.
    """

    table: Tensor
    order: Tensor | None
    kind: str

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K) of the values."""
        blocks = KINDS[self.kind]
        rows = len(self.table) if self.order is None else len(self.order)
        return rows, self.table.shape[1] // blocks.bytes * blocks.length


def block_bytes(rows: int, inputs: int, kind: BlockKind) -> int:
    """The memory of a matrix of so many rows and columns in blocks."""
    panels = -(-rows // PANEL)
    row_bytes = blocks_of(inputs) * (BLOCK // 8 * kind.bits + 2 * _numbers(kind))
    return panels * PANEL * row_bytes


def can_lay_out() -> bool:
    """Whether the compiled code is on disk: nothing waits for its compilation here."""
    if not enabled():
        return False
    interpreter = compiled_interpreter()
    return interpreter is not None and interpreter.is_on_disk()


class BlockLayout:
    """Rows that another thread lays out in blocks.

    weights: what `BlockWeight.from_q8_0` and others make of the rows, for results of `dtype`. They
    may be read when `finish` has returned.
    """

    def __init__(self, sources: Sequence[FileRows], dtype: torch.dtype, memory: HugeMemory) -> None:
        blocks = [_reserve(source, memory) for source in sources]
        self._sources = sources
        self._memory = memory
        self._infinite = torch.zeros(len(sources), dtype=torch.int32)
        self._helpers = max(1, thread_count() - 1)  # one core is that of the other thread
        program = _program(sources, blocks, self._infinite)
        self._execution = Execution(program, self._helpers + 1)
        # Not a daemon: the process does not end while it writes.
        self._thread = Thread(target=self._run, args=(1,), name="layout")
        self._thread.start()
        self.weights = [
            BlockWeight(*each, source.shape, dtype, has_levels=_kind(source).has_levels)
            for source, each in zip(sources, blocks, strict=True)
        ]

    def finish(self) -> list[bool]:
        """Help that thread; returns, when all is done, whether all scales of each weight are
        finite.
        """
        self._run(self._helpers)
        self._thread.join()
        return (self._infinite == 0).tolist()

    def _run(self, threads: int) -> None:
        self._memory.stop_providing()
        self._execution.run(threads)


class _Blocks(NamedTuple):
    """The memory of a `BlockWeight`."""

    values: Tensor
    scales: Tensor


def _reserve(source: FileRows, memory: HugeMemory) -> _Blocks:
    """Memory for the matrix of these rows."""
    rows, inputs = source.shape
    kind = _kind(source)
    panels = -(-rows // PANEL)
    blocks = inputs // BLOCK
    codes_of_block = kind.bits * PANEL * WORD
    scales_of_block = _numbers(kind) * PANEL
    code_bytes = panels * blocks * codes_of_block
    # One piece of memory takes less time than two, and two views of it less than those of parts.
    memory_bytes = code_bytes + 2 * panels * blocks * scales_of_block
    whole = memory.reserve((memory_bytes,), torch.uint8)
    values = whole.as_strided(
        (panels, blocks, kind.bits, PANEL, WORD),
        (blocks * codes_of_block, codes_of_block, PANEL * WORD, WORD, 1),
    )
    scales = whole.view(torch.float16).as_strided(
        (panels, blocks, _numbers(kind), PANEL),
        (blocks * scales_of_block, scales_of_block, PANEL, 1),
        code_bytes // 2,
    )
    return _Blocks(values, scales)


def _program(sources: Sequence[FileRows], blocks: Sequence[_Blocks], infinite: Tensor) -> Array:
    """An instruction for each matrix. infinite: becomes 1 where a scale is not finite."""
    shapes = [source.shape for source in sources]
    orders = [source.order for source in sources]
    fields = {
        "dtype": [KINDS[source.kind].kind for source in sources],
        "mode": [KINDS[source.kind].mode for source in sources],
        "units": [each.values.shape[0] for each in blocks],
        "inputs": [inputs for _, inputs in shapes],
        "outputs": [rows for rows, _ in shapes],
        "x": [source.table.data_ptr() for source in sources],
        "row_stride": [source.table.shape[1] for source in sources],
        "weight": [0 if order is None else order.data_ptr() for order in orders],
        "out": [each.values.data_ptr() for each in blocks],
        "scales": [each.scales.data_ptr() for each in blocks],
        "bias": [each.data_ptr() for each in infinite.unbind()],
    }
    program = np.zeros(len(sources), INSTRUCTION)
    program["opcode"] = BLOCK_LAYOUT
    for name, values in fields.items():
        program[name] = values
    divide_into_tasks(program)
    return program


def _kind(source: FileRows) -> BlockKind:
    return BLOCK_KINDS[KINDS[source.kind].kind]


def _numbers(kind: BlockKind) -> int:
    """The numbers of a block beside its codes: its scale, and the offset if it has one."""
    return 2 if kind.has_offsets else 1
