"""Lays out many matrices of a GGUF file at once, on other threads and in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, enabled
from trifold.fast.block_weight import BLOCK, PANEL, BlockWeight
from trifold.fast.huge_pages import HugeMemory
from trifold.fast.instruction import (
    BLOCK4,
    BLOCK4_LEVELS,
    BLOCK4_OFFSETS,
    BLOCK5,
    BLOCK5_OFFSETS,
    BLOCK8,
    BLOCK_KINDS,
    BLOCK_LAYOUT,
    INSTRUCTION,
)
from trifold.fast.thread_pool import (
    Array,
    Execution,
    divide_into_tasks,
    set_fields,
    thread_count,
)

KINDS = {
    "Q8_0": BLOCK8,
    "Q5_0": BLOCK5,
    "Q5_1": BLOCK5_OFFSETS,
    "Q4_0": BLOCK4,
    "Q4_1": BLOCK4_OFFSETS,
    "IQ4_NL": BLOCK4_LEVELS,
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
        dtype = KINDS[self.kind]
        size = 2 * _numbers(dtype) + 4 * BLOCK_KINDS[dtype].bits
        rows = len(self.table) if self.order is None else len(self.order)
        return rows, self.table.shape[1] // size * BLOCK


def can_lay_out() -> bool:
    """Whether the compiled code is on disk: nothing waits for its compilation here."""
    if not enabled():
        return False
    interpreter = compiled_interpreter()
    return interpreter is not None and interpreter.is_on_disk()


class Layout:
    """Rows that another thread lays out in blocks.

    weights: what `BlockWeight.from_q8_0` and others make of the rows, for results of `dtype`. They
    may be read when `finish` has returned.
    """

    def __init__(self, sources: Sequence[FileRows], dtype: torch.dtype, memory: HugeMemory) -> None:
        self.weights = _allocate(sources, dtype, memory)
        self._sources = sources
        self._memory = memory
        self._infinite = torch.zeros(len(sources), dtype=torch.int32)
        self._helpers = max(1, thread_count() - 1)  # one core is that of the other thread
        self._execution = Execution(self._program(), self._helpers + 1)
        # Not a daemon: the process does not end while it writes.
        self._thread = Thread(target=self._run, args=(1,), name="layout")
        self._thread.start()

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

    def _program(self) -> Array:
        """An instruction for each weight."""
        program = np.zeros(len(self.weights), INSTRUCTION)
        program["opcode"] = BLOCK_LAYOUT
        for number, (source, weight) in enumerate(zip(self._sources, self.weights, strict=True)):
            set_fields(
                program,
                number,
                dtype=KINDS[source.kind],
                units=len(weight.values),
                inputs=weight.shape[1],
                outputs=weight.shape[0],
                x=source.table,
                row_stride=source.table.shape[1],
                weight=source.order,
                out=weight.values,
                scales=weight.scales,
                bias=self._infinite[number],
            )
        divide_into_tasks(program)
        return program


def _numbers(dtype: int) -> int:
    """The numbers of a block beside its codes: its scale, and the offset if it has one."""
    return 2 if BLOCK_KINDS[dtype].has_offsets else 1


def _allocate(
    sources: Sequence[FileRows], dtype: torch.dtype, memory: HugeMemory
) -> list[BlockWeight]:
    """Memory for the matrices."""
    weights = []
    for source in sources:
        rows, inputs = source.shape
        kind = KINDS[source.kind]
        panels = -(-rows // PANEL)
        blocks = inputs // BLOCK
        bits = BLOCK_KINDS[kind].bits
        # One piece of memory, which takes less time than two.
        sizes = [panels * blocks * PANEL * size for size in (4 * bits, 2 * _numbers(kind))]
        codes, numbers = memory.reserve((sum(sizes),), torch.uint8).split(sizes)
        values = codes.view(panels, blocks, bits, PANEL, 4)
        scales = numbers.view(torch.float16).view(panels, blocks, _numbers(kind), PANEL)
        shape = (rows, inputs)
        has_levels = BLOCK_KINDS[kind].has_levels
        weights.append(BlockWeight(values, scales, shape, dtype, has_levels=has_levels))
    return weights
