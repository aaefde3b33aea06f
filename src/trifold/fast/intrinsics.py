"""Intrinsics that Numba lacks: arrays at an address, memory without its runtime, prefetch, atomic
counters, yielding the CPU.
"""

import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from trifold.fast.loops import subroutine


@intrinsic
def to_pointer(typing: Any, address: Any) -> Any:
    """Convert an address to a pointer."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def prefetch_line(typing: Any, address: Any) -> Any:
    """Load the cache line at an address, valid or not, into the second-level cache in the
    background.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(32)
        signature_ = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, signature_, "llvm.prefetch.p0")
        builder.call(
            prefetch, [builder.inttoptr(values[0], cgutils.voidptr_t), word(0), word(2), word(1)]
        )
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _element_pointer(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """The pointer to array[index], the first two arguments of an intrinsic."""
    array_type, index_type = signature.args[:2]
    array = context.make_array(array_type)(context, builder, values[0])
    index = context.cast(builder, values[1], index_type, types.intp)
    return cgutils.get_item_pointer(context, builder, array_type, array, [index])


@intrinsic
def atomic_add(typing: Any, array: Any, index: Any, amount: Any) -> Any:
    """Add to array[index] atomically; returns its previous value."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        added = context.cast(builder, values[2], signature.args[2], types.int64)
        pointer = _element_pointer(context, builder, signature, values)
        return builder.atomic_rmw("add", pointer, added, "seq_cst")

    return types.int64(array, index, amount), generate


@intrinsic
def atomic_load(typing: Any, array: Any, index: Any) -> Any:
    """Load array[index] atomically."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(
            _element_pointer(context, builder, signature, values), "seq_cst", 8
        )

    return types.int64(array, index), generate


if os.name == "posix":
    yield_cpu = types.ExternalFunction("sched_yield", types.intc())
else:

    @subroutine
    def yield_cpu() -> int:
        """Do nothing: this system has no sched_yield."""
        return 0


def _array_at(dtype: Any) -> Any:
    @subroutine
    def array_at(address: Any, count: Any) -> Any:
        return carray(to_pointer(address), (count,), dtype=dtype)

    return array_at


# Memory without Numba's runtime, which only a process that imports Numba has.
allocate = types.ExternalFunction("PyMem_RawMalloc", types.int64(types.int64))
release = types.ExternalFunction("PyMem_RawFree", types.void(types.int64))


def _matrix_at(dtype: Any) -> Any:
    @subroutine
    def matrix_at(address: Any, rows: Any, columns: Any) -> Any:
        return carray(to_pointer(address), (rows, columns), dtype=dtype)

    return matrix_at


# The matrix (rows, columns) at an address.
float32_matrix_at = _matrix_at(np.float32)
bfloat16_matrix_at = _matrix_at(np.uint16)
float16_matrix_at = _matrix_at(np.int16)
# The array of `count` elements at an address.
float32_at = _array_at(np.float32)
bfloat16_at = _array_at(np.uint16)
float16_at = _array_at(np.int16)
int8_at = _array_at(np.int8)
uint8_at = _array_at(np.uint8)
int16_at = _array_at(np.int16)
int32_at = _array_at(np.int32)
int64_at = _array_at(np.int64)
