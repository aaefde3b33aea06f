"""Runs instructions on the threads of PyTorch's own operators, and shares CPU cores between Python
threads.

A separate thread pool would compete for the cores with PyTorch's OpenMP threads, which spin for
milliseconds after each operator. Starting work on the OpenMP threads takes two microseconds.
"""

import ctypes
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from threading import Barrier
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.fast import compiled_interpreter, enabled
from trifold.fast.block_weight import PANEL, BlockWeight
from trifold.fast.file_weight import KINDS, FileWeight
from trifold.fast.half_weight import HalfWeight
from trifold.fast.instruction import (
    BFLOAT16,
    BLOCK_KINDS,
    BLOCK_MATMUL,
    BLOCK_PANELS,
    DENSE_PANELS,
    FEW_ROWS,
    FEW_WIDENED_ROWS,
    FLOAT16,
    FLOAT32,
    INSTRUCTION,
    MATMUL,
    PANELS,
    WIDENED,
    BlockKind,
    outputs_per_block_task,
    outputs_per_task,
)
from trifold.fast.openmp import contended, count_stalls, openmp
from trifold.fast.quantized_weight import QuantizedWeight, Weight

Array: TypeAlias = NDArray[Any]
Field: TypeAlias = Tensor | float | None
"""The value of a field of an instruction; a tensor stands for its address."""

STRIDED = ("keys", "values")  # fields of tensors whose rows may be apart
MAX_THREADS = 16  # more do not increase the memory bandwidth
# Into so many tasks the units of an instruction are divided, if there are as many.
TASKS_PER_INSTRUCTION = 32
STALLS = 5  # the field of a job with the waits for a thread that has lost its CPU
MAIN_PROCESS = os.getpid()
DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}  # what the instructions read
HALVES = {torch.bfloat16: WIDENED, torch.float16: FLOAT16}  # and in computations of another type


def execute(program: Array) -> None:
    """Execute the instructions on PyTorch's threads. Their number does not change the results."""
    threads = thread_count()
    Execution(program, threads).run(threads)


class Execution:
    """The execution of instructions on so many threads, some of which may begin later."""

    def __init__(self, program: Array, threads: int) -> None:
        self._program = program
        self._counters = counters = np.zeros((threads + 1, len(program)), np.int64)
        fields = [program.ctypes.data, len(program), counters.ctypes.data, threads, 0, 0]
        self._job = np.array(fields)

    def run(self, threads: int) -> None:
        """Execute what no other thread has begun, on so many threads, this one among them. Returns
        when all instructions are done.
        """
        entry_point = compiled_interpreter().entry_point()
        start = openmp()
        if start is None or threads == 1:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entry_point)(self._job.ctypes.data)
        else:
            start(entry_point, self._job.ctypes.data, threads, 0)
            count_stalls(int(self._job[STALLS]))


def thread_count() -> int:
    """How many threads execute instructions: half of PyTorch's while other processes use the cores.

    A forked child process has none of its parent's threads: there, as without OpenMP, one thread
    executes all.
    """
    if openmp() is None or os.getpid() != MAIN_PROCESS:
        return 1
    threads = min(torch.get_num_threads(), MAX_THREADS)
    return max(1, threads // 2) if contended() else threads


def execute_one(**fields: Field) -> None:
    """Execute one instruction."""
    program = np.zeros(1, INSTRUCTION)
    set_fields(program, 0, **fields)
    if "units" in fields:
        divide_into_tasks(program)
    execute(program)


def new_program(instructions: Sequence[dict[str, Field]]) -> Array:
    """Instructions with these fields, as `set_fields` sets them, a field of all of them at a time:
    a prompt is translated each time that it is read.
    """
    program = np.zeros(len(instructions), INSTRUCTION)
    values: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for index, fields in enumerate(instructions):
        for name, value in fields.items():
            if isinstance(value, Tensor):
                values[name].append((index, _content(name, value)))
            elif value:
                values[name].append((index, value))
    for name, found in values.items():
        indices, contents = zip(*found, strict=True)
        program[name][list(indices)] = contents
    return program


def set_fields(program: Array, index: Any, **fields: Field) -> None:
    """Set fields of program[index]: tensors by address, None as 0. The caller keeps the tensors
    alive. All but keys and values, which have strides, are contiguous.
    """
    for name, value in fields.items():
        program[name][index] = _content(name, value)


def _content(name: str, value: Field) -> float:
    """The content of a field."""
    if not isinstance(value, Tensor):
        return value or 0
    assert value.is_contiguous() or name in STRIDED, f"{name}: not contiguous"
    return value.data_ptr()


def divide_into_tasks(program: Array) -> None:
    """Divide the units of each instruction into tasks. Matmuls have tasks, but no units."""
    units = program["units"]
    program["units_per_task"] = np.maximum(units // TASKS_PER_INSTRUCTION, 1)
    program["tasks"] = np.where(units > 0, -(-units // program["units_per_task"]), program["tasks"])


def divided(units: int) -> dict[str, Field]:
    """The fields of one instruction with so many units, as `divide_into_tasks` sets them."""
    per_task = max(1, units // TASKS_PER_INSTRUCTION)
    return {"units": units, "units_per_task": per_task, "tasks": -(-units // per_task)}


def matmul_fields(weight: Weight) -> dict[str, Field]:
    """The fields of a matmul with a contiguous weight (N, K)."""
    if isinstance(weight, BlockWeight):
        return _block_fields(weight)
    outputs, inputs = weight.shape
    if isinstance(weight, HalfWeight):
        stored = weight.values.dtype
        dtype = DTYPES[stored] if stored is weight.dtype else HALVES[stored]
        weight = weight.values
    else:
        assert isinstance(weight, Tensor), "see `is_readable`"
        dtype = DTYPES[weight.dtype]
    return {
        **{"opcode": MATMUL, "dtype": dtype, "inputs": inputs, "outputs": outputs},
        # Detached, so that its memory stays even if the parameter gets other data.
        "weight": weight.detach(),
        "tasks": -(-outputs // outputs_per_task(inputs, dtype)),
    }


def _block_fields(weight: BlockWeight) -> dict[str, Field]:
    # A prompt is translated each time, and attributes of a module that are tensors take long.
    if isinstance(weight, FileWeight):
        table, order = (weight._buffers[name] for name in ("table", "order"))
        assert table is not None
        sizes = _block_sizes(*weight.shape, weight.kind.bits, block_kind(weight))
        rows: dict[str, Field] = {"weight": table, "row_stride": table.shape[1], "scales": order}
        return {**sizes, **rows, "stored": KINDS[weight.stored].stored}
    values, scales = (weight._buffers[name] for name in ("values", "scales"))
    assert values is not None and scales is not None
    bits = values.shape[2]
    kind = _number_of_kind(bits, scales.shape[2] == 2, weight.has_levels)
    return {**_block_sizes(*weight.shape, bits, kind), "weight": values, "scales": scales}


@lru_cache(maxsize=64)  # layers are alike
def _block_sizes(outputs: int, inputs: int, bits: int, kind: int) -> dict[str, Field]:
    per_task = outputs_per_block_task(inputs, bits)
    return {
        **{"opcode": BLOCK_MATMUL, "dtype": kind, "inputs": inputs},
        **{"outputs": outputs, "tasks": -(-outputs // per_task)},
    }


def panel_fields(weight: Weight) -> dict[str, Field]:
    """The fields of a matmul of many rows, on processors with `instruction_sets.has_panels`."""
    fields = matmul_fields(weight)
    fields["opcode"] = BLOCK_PANELS if isinstance(weight, BlockWeight) else DENSE_PANELS
    return fields | divided(-(-weight.shape[0] // (PANELS * PANEL)))


def part_fields(weight: BlockWeight, rows: range) -> dict[str, Field]:
    """The fields of some rows of a weight, in whole panels, for an instruction that decodes."""
    own = slice(rows.start, rows.stop)
    panels = slice(rows.start // PANEL, -(-rows.stop // PANEL))
    fields = _block_fields(weight) | {"units": panels.stop - panels.start, "rows": len(rows)}
    if not isinstance(weight, FileWeight):
        return fields | {"weight": weight.values[panels], "scales": weight.scales[panels]}
    if weight.order is None:
        return fields | {"weight": weight.table[own]}
    return fields | {"scales": weight.order[own]}


def block_kind(weight: BlockWeight) -> int:
    """The number of its kind in instructions."""
    return _number_of_kind(weight.bits, weight.has_offsets, weight.has_levels)


@cache
def _number_of_kind(bits: int, has_offsets: bool, has_levels: bool) -> int:
    return BLOCK_KINDS.index(BlockKind(bits, has_offsets, has_levels))


def few_rows(weight: Weight) -> int:
    """Up to how many rows an instruction multiplies them faster than a library."""
    is_widened = isinstance(weight, HalfWeight) and weight.dtype is torch.float32
    return FEW_WIDENED_ROWS if is_widened else FEW_ROWS


def is_readable(weight: Weight) -> bool:
    """Whether instructions can read this weight in place: quantized ones only in blocks
    or in 16 bits.
    """
    if weight.device.type != "cpu":
        return False
    if isinstance(weight, QuantizedWeight):
        return isinstance(weight, BlockWeight | HalfWeight)
    return weight.dtype in DTYPES and weight.is_contiguous()


# --- batches in parallel --------------------------------------------------------------------------

MAX_WORKERS = 8
BATCH_TOKENS = 2048  # of a worker, more than matmuls need for their peak
MIN_BATCH_TOKENS = 256  # below, matmuls on all threads are faster


def workers_on(device: torch.device) -> int:
    """How many threads read batches at once on a device: one for each CPU core, if the faster
    versions are installed. Loops that run on one thread then leave no core idle.
    """
    if device.type != "cpu" or not enabled():
        return 1
    return min(torch.get_num_threads(), MAX_WORKERS)


def share_of(total: int, batch_size: int, workers: int) -> int:
    """The size of a batch of so many workers, which get equal shares of `total` tokens.

    All together hold at most `batch_size` tokens, as one does.
    """
    if workers == 1:
        return batch_size
    limit = max(1, min(batch_size // workers, BATCH_TOKENS))
    batches = workers * -(-total // (workers * limit))
    return min(limit, max(-(-total // max(1, batches)), MIN_BATCH_TOKENS))


def map_on(workers: int, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """function(item) of each item, in order; several at once if there are several workers."""
    if workers == 1 or len(items) < 2 or os.getpid() != MAIN_PROCESS:
        return map(function, items)
    return _shared_executor(workers, torch.get_num_threads()).map(function, items)


@cache
def _shared_executor(workers: int, threads: int) -> ThreadPoolExecutor:
    """Kept, because what libraries prepare for a thread is lost with it."""
    return executor_sharing_cores(workers)


def executor_sharing_cores(workers: int) -> ThreadPoolExecutor:
    """A pool of Python threads that divide this thread's cores: each runs PyTorch operators on its
    part of them.
    """
    threads = torch.get_num_threads()
    barrier = Barrier(workers)

    def initialize(_: int) -> None:
        # The first call in a thread sets the number that was set last in the process.
        torch.get_num_threads()
        torch.set_num_threads(max(1, threads // workers))
        barrier.wait()  # so that each thread runs this function once

    executor = ThreadPoolExecutor(workers, "worker")
    list(executor.map(initialize, range(workers)))
    torch.set_num_threads(threads)
    return executor
