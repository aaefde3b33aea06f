"""The interpreter: executes the instructions of a decoding step on several threads, compiled by
Numba.

A step for a few rows reads every weight once and computes little, so nothing may come between two
matmuls: no operator, no allocation, no waking of threads. compiled_decoder.py therefore translates
a stack into an array of instructions once, and `_execute` runs it. The threads take the tasks of an
instruction from a shared counter, whichever is free the next one. An instruction that reads the
results of others waits until all their tasks are done.
"""

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import carray, cfunc, types

from trifold.fast.dot_products import TILE
from trifold.fast.instruction import (
    ATTENTION,
    BLOCK_DEQUANTIZE,
    BLOCK_EMBED,
    BLOCK_LAYOUT,
    BLOCK_MATMUL,
    BLOCK_PANELS,
    BLOCK_QUANTIZE,
    DENSE_PANELS,
    DEQUANTIZE,
    EMBED,
    FINISH,
    FLOAT32,
    INSTRUCTION,
    MATMUL,
    NORM,
    PREFETCH_BYTES,
    PROMPT_ATTENTION,
    QUANTIZE,
    ROTATE,
    SCALE,
)
from trifold.fast.intrinsics import (
    allocate,
    atomic_add,
    atomic_load,
    bfloat16_at,
    float32_at,
    release,
    to_pointer,
    yield_cpu,
)
from trifold.fast.loops import Array, inline, subroutine
from trifold.fast.step_attention import attention
from trifold.fast.step_blocks import (
    block_matmul,
    block_weight_address,
    dequantize_panel,
    quantize_blocks,
    quantized_rows,
    release_rows,
)
from trifold.fast.step_embedding import embed_block_row, embed_row, scale_row
from trifold.fast.step_layout import lay_out_panel
from trifold.fast.step_linear import (
    convert_row,
    dequantize_row,
    finish_row,
    is_tiled,
    matmul,
    norm,
    pack,
    prefetch,
    quantize_row,
    weight_address,
)
from trifold.fast.step_panels import multiply_panels
from trifold.fast.step_prompt import (
    prompt_attention_in_bfloat16,
    prompt_attention_in_float32,
    rotate_tokens_in_bfloat16,
    rotate_tokens_in_float32,
)

SPINS = 100_000  # polls of a counter, one or two nanoseconds each, before the CPU is yielded
STALL_YIELDS = 2_000  # after them, about a millisecond, a thread waits for one without a CPU
PREFETCH_PER_POLL = 256  # bytes
MAX_PREFETCH = 2**18  # bytes prefetched while waiting; they must stay in the second-level cache


@inline
def _wait(done: Array, number: int, op: Any, start: int, end: int, stalls: Array) -> int:
    """Wait until all tasks of an instruction are done and prefetch from start to end; returns the
    new start.

    A task of a matmul takes microseconds, unless its thread has lost its CPU: longer waits are
    counted in stalls (1,).
    """
    polls = 0
    while atomic_load(done, number) < op.tasks:
        if start < end:
            prefetch(start, start + PREFETCH_PER_POLL)
            start += PREFETCH_PER_POLL
        polls += 1
        if polls > SPINS:
            yield_cpu()
        if polls == SPINS + STALL_YIELDS and op.opcode in (MATMUL, BLOCK_MATMUL):
            atomic_add(stalls, 0, 1)
    return start


@inline
def _run_units(op: Any, units: range) -> None:
    """Some units of an instruction other than a matmul."""
    unbounded = np.int64(1) << np.int64(60)  # the strides imply the length of the cache
    if op.opcode == ATTENTION:
        if op.dtype == FLOAT32:
            attention(op, units, float32_at(op.keys, unbounded), float32_at(op.values, unbounded))
        else:
            attention(op, units, bfloat16_at(op.keys, unbounded), bfloat16_at(op.values, unbounded))
        return
    if op.opcode == PROMPT_ATTENTION:
        if op.dtype == FLOAT32:
            prompt_attention_in_float32(op, units)
        else:
            prompt_attention_in_bfloat16(op, units)
        return
    if op.opcode == ROTATE:
        if op.dtype == FLOAT32:
            rotate_tokens_in_float32(op, units)
        else:
            rotate_tokens_in_bfloat16(op, units)
        return
    if op.opcode in (BLOCK_PANELS, DENSE_PANELS):
        multiply_panels(op, units)
        return
    _run_rows(op, units)


@subroutine
def _run_rows(op: Any, units: range) -> None:
    """Some units of an instruction that computes one unit after the other."""
    for row in units:
        if op.opcode == NORM:
            norm(op, row)
        elif op.opcode == QUANTIZE:
            quantize_row(op, row)
        elif op.opcode == DEQUANTIZE:
            dequantize_row(op, row)
        elif op.opcode == FINISH:
            finish_row(op, row)
        elif op.opcode == BLOCK_QUANTIZE:
            quantize_blocks(op, row, op.out)
        elif op.opcode == BLOCK_DEQUANTIZE:
            dequantize_panel(op, row)
        elif op.opcode == BLOCK_LAYOUT:
            lay_out_panel(op, row)
        elif op.opcode == EMBED:
            embed_row(op, row)
        elif op.opcode == BLOCK_EMBED:
            embed_block_row(op, row)
        elif op.opcode == SCALE:
            scale_row(op, row)
        else:
            convert_row(op, row)


@inline
def _packed_bytes(program: Array) -> int:
    """The size of the packed rows of the widest tiled matmul."""
    size = 1
    for number in range(program.shape[0]):
        op = program[number]
        if is_tiled(op):
            rows = (op.rows + TILE - 1) // TILE * TILE
            size = max(size, 2 * rows * op.inputs)
    return size


@inline
def _execute(
    program: Array, taken: Array, done: Array, stalls: Array, thread: int, threads: int
) -> None:
    """Execute the instructions together with the other threads; returns when all are done.

    program (n,) is constant. taken (threads · n,) counts the tasks taken from each thread's share
    of an instruction, done (n,) those that are finished; both start as zeros. stalls: see `_wait`.
    A thread first takes its own share in memory order, then helps with those of others. Threads
    wait for tasks that were taken, never for a thread: one that starts late or loses its CPU finds
    less to do.
    """
    count = program.shape[0]
    complete = 0
    packed = allocate(_packed_bytes(program))
    packed_x = 0
    for number in range(count):
        op = program[number]
        finished = 0
        quantized = 0  # the rows of x, for weights in blocks
        for turn in range(threads):
            share = (thread + turn) % threads
            first = op.tasks * share // threads
            last = op.tasks * (share + 1) // threads
            task = first + atomic_add(taken, share * count + number, 1)
            start = end = 0
            if op.opcode == MATMUL and task < last:
                start = weight_address(op, task)
                end = min(start + MAX_PREFETCH, weight_address(op, last))
                prefetch(start, start + PREFETCH_BYTES)
                start += PREFETCH_BYTES
            elif op.opcode == BLOCK_MATMUL and task < last:
                start = block_weight_address(op, task)
                end = min(start + MAX_PREFETCH, block_weight_address(op, last))
                prefetch(start, start + PREFETCH_BYTES)
                start += PREFETCH_BYTES
            if op.waits:
                while complete < number:
                    start = _wait(done, complete, program[complete], start, end, stalls)
                    complete += 1
                packed_x = 0
            if task < last and is_tiled(op) and op.x != packed_x:
                pack(op, packed)
                packed_x = op.x
            while task < last:
                if op.opcode == MATMUL:
                    matmul(op, task, packed)
                elif op.opcode == BLOCK_MATMUL:
                    if quantized == 0:
                        quantized = quantized_rows(op)
                    block_matmul(op, task, quantized)
                else:
                    _run_units(
                        op,
                        range(
                            task * op.units_per_task, min(op.units, (task + 1) * op.units_per_task)
                        ),
                    )
                finished += 1
                task = first + atomic_add(taken, share * count + number, 1)
        if finished:
            atomic_add(done, number, finished)
        if quantized != 0:
            release_rows(op, quantized)
    while complete < count:
        _wait(done, complete, program[complete], 0, 0, stalls)
        complete += 1
    release(packed)


@inline
def _run_thread(job: Any) -> None:
    """The work of one thread. job (6,): the address of the instructions, their number, the address
    of the counters `taken` and `done`, the largest number of threads, the number that have started,
    and the number of stalls.
    """
    fields = carray(job, 6)
    count = fields[1]
    threads = fields[3]
    program = carray(to_pointer(fields[0]), (count,), dtype=INSTRUCTION)
    taken = carray(to_pointer(fields[2]), (threads * count,), dtype=np.int64)
    done = carray(to_pointer(fields[2] + 8 * threads * count), (count,), dtype=np.int64)
    _execute(program, taken, done, fields[5:], atomic_add(fields, 4, 1), threads)


def compiled(source_hash: int, *, cache: bool = False) -> Any:
    """`_run_thread` as a C function compiled by Numba, which has an address.

    cache: whether Numba keeps it on disk. It finds it by this file and by the values in the closure
    of the function: the hash of all source files.
    """

    def run_thread(job: Any) -> None:
        if source_hash != 0:
            _run_thread(job)

    return cfunc(types.void(types.CPointer(types.int64)), cache=cache)(run_thread)


def module_of(function: Any, symbol: str) -> Any:
    """An LLVM module with a compiled C function by another name, and with what it calls."""
    _, _, (_, bitcode) = function._library.serialize_using_object_code()
    numba_module = llvm.parse_bitcode(bitcode)
    # What the C function calls. It returns a status, and its result and error by reference.
    native = function.native_name.removeprefix("cfunc.")
    module = llvm.parse_assembly(
        f"""
        target triple = "{numba_module.triple}"
        target datalayout = "{numba_module.data_layout}"
        declare i32 @"{native}"(ptr, ptr, ptr)
        define void @"{symbol}"(ptr %job) {{
            %result = alloca ptr
            %error = alloca ptr
            %status = call i32 @"{native}"(ptr %result, ptr %error, ptr %job)
            ret void
        }}
        """
    )
    # This links only what is called: nothing of Numba's runtime, and no handling of errors.
    module.link_in(numba_module)
    return module
