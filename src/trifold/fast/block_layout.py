"""Lays out many matrices of a GGUF file at once, on other threads and in one piece of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from threading import Thread
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from trifold.fast import compiled_interpreter, enabled
from trifold.fast.block_weight import BLOCK, PANEL, WORD, BlockWeight, blocks_of
from trifold.fast.file_weight import EXISTING, KINDS, FileRows, FileWeight
from trifold.fast.huge_pages import ALIGNMENT, HugeMemory, release_parts
from trifold.fast.instruction import BLOCK_LAYOUT, INSTRUCTION, BlockKind
from trifold.fast.thread_pool import (
    Array,
    Execution,
    divide_into_tasks,
    thread_count,
)
from trifold.nn.stack import all_modules


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
    in_place: whether they stay where they are, and are only examined.
    """

    def __init__(
        self,
        sources: Sequence[FileRows],
        dtype: torch.dtype,
        memory: HugeMemory,
        *,
        in_place: bool = False,
    ) -> None:
        blocks = [None if in_place else _reserve(source, memory) for source in sources]
        self._laid_out = [] if in_place else [source.table for source in sources]
        self._memory = memory
        self._infinite = torch.zeros(len(sources), dtype=torch.int32)
        self._helpers = max(1, thread_count() - 1)  # one core is that of the other thread
        program = _program(sources, blocks, self._infinite)
        self._execution = Execution(program, self._helpers + 1)
        # Not a daemon: the process does not end while it writes.
        self._thread = Thread(target=self._run, args=(1,), name="layout")
        self._thread.start()
        self.weights = [
            _weight(source, dtype, memory_of_it)
            for source, memory_of_it in zip(sources, blocks, strict=True)
        ]

    def finish(self) -> list[bool]:
        """Help that thread; returns, when all is done, whether all scales of each weight are
        finite. What was laid out takes no memory of its file any more.
        """
        self._run(self._helpers)
        self._thread.join()
        release_parts(self._laid_out)
        return (self._infinite == 0).tolist()

    def _run(self, threads: int) -> None:
        self._memory.stop_providing()
        self._execution.run(threads)


_examined: WeakSet[nn.Module] = WeakSet()  # by `lay_out_before_steps`


def lay_out_before_steps(module: nn.Module) -> None:
    """Replace the weights of a module and of its parts that are in the memory of a file: decoding
    steps read every weight again, which is faster from memory in the order of the instructions.

    Whoever reads the file in another thread keeps its weights, which have the same bits.
    """
    if not EXISTING or module in _examined:  # other models may have such weights
        return
    _examined.add(module)
    modules_of = defaultdict[FileWeight, list[nn.Module]](list)
    for each in all_modules(module):
        weight = each._modules.get("weight")
        if isinstance(weight, FileWeight) and weight.device.type == "cpu":
            modules_of[weight].append(each)
    if not modules_of:
        return
    sources = [weight.file_rows for weight in modules_of]
    size = sum(block_bytes(*source.shape, source.block_kind) + 2 * ALIGNMENT for source in sources)
    layout = BlockLayout(sources, torch.float32, HugeMemory(size))
    layout.finish()
    for made, (weight, modules) in zip(layout.weights, modules_of.items(), strict=True):
        made.dtype = weight.dtype
        for each in modules:
            each._modules["weight"] = made


class _Blocks(NamedTuple):
    """The memory of a `BlockWeight`."""

    values: Tensor
    scales: Tensor


def _weight(source: FileRows, dtype: torch.dtype, blocks: _Blocks | None) -> BlockWeight:
    """The weight of some rows, in this memory or in that of the file."""
    if blocks is None:
        return FileWeight(source, dtype)
    has_levels = source.block_kind.has_levels
    return BlockWeight(*blocks, source.shape, dtype, has_levels=has_levels)


def _reserve(source: FileRows, memory: HugeMemory) -> _Blocks:
    """Memory for the matrix of these rows."""
    rows, inputs = source.shape
    kind = source.block_kind
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


def _program(
    sources: Sequence[FileRows], blocks: Sequence[_Blocks | None], infinite: Tensor
) -> Array:
    """An instruction for each matrix. infinite: becomes 1 where a scale is not finite."""
    shapes = [source.shape for source in sources]
    orders = [source.order for source in sources]
    fields = {
        "dtype": [KINDS[source.kind].kind for source in sources],
        "stored": [KINDS[source.kind].stored for source in sources],
        "units": [-(-rows // PANEL) for rows, _ in shapes],
        "inputs": [inputs for _, inputs in shapes],
        "outputs": [rows for rows, _ in shapes],
        "weight": [source.table.data_ptr() for source in sources],
        "row_stride": [source.table.shape[1] for source in sources],
        "scales": [0 if order is None else order.data_ptr() for order in orders],
        "out": [0 if each is None else each.values.data_ptr() for each in blocks],
        "bias": [each.data_ptr() for each in infinite.unbind()],
    }
    program = np.zeros(len(sources), INSTRUCTION)
    program["opcode"] = BLOCK_LAYOUT
    for name, values in fields.items():
        program[name] = values
    divide_into_tasks(program)
    return program


def _numbers(kind: BlockKind) -> int:
    """The numbers of a block beside its codes: its scale, and the offset if it has one."""
    return 2 if kind.has_offsets else 1
