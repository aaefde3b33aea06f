"""What compiled loops need and the language has not: arrays at an address, what comes nearer, counters that threads
share, giving way.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from trifold.fast.loops import piece


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def fetch(typing: Any, address: Any) -> Any:
    """The line of memory at an address, which may be any, comes nearer (into the second cache) while work goes on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(instruction, [builder.inttoptr(values[0], cgutils.voidptr_t), word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def raised(typing: Any, array: Any, index: Any, amount: Any) -> Any:
    """array[index] as it was; it becomes so much more, in one act that threads cannot disturb."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, where, number = signature.args
        held = context.make_array(kind)(context, builder, values[0])
        place = context.cast(builder, values[1], where, types.intp)
        pointer = cgutils.get_item_pointer(context, builder, kind, held, [place])
        more = context.cast(builder, values[2], number, types.int64)
        return builder.atomic_rmw("add", pointer, more, "seq_cst")

    return types.int64(array, index, amount), generate


@intrinsic
def seen(typing: Any, array: Any, index: Any) -> Any:
    """array[index], looked up anew."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, where = signature.args
        held = context.make_array(kind)(context, builder, values[0])
        place = context.cast(builder, values[1], where, types.intp)
        pointer = cgutils.get_item_pointer(context, builder, kind, held, [place])
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(array, index), generate


if os.name == "posix":
    give_way = types.ExternalFunction("sched_yield", types.intc())
else:

    @piece
    def give_way() -> int:
        """Nothing, where the system has no such call."""
        return 0


@piece
def floats(address: Any, count: Any) -> Any:
    """At an address: count numbers of fp32."""
    return carray(pointer(address), (count,), dtype=np.float32)


@piece
def brains(address: Any, count: Any) -> Any:
    """At an address: count numbers of bf16, as uint16."""
    return carray(pointer(address), (count,), dtype=np.uint16)


@piece
def octets(address: Any, count: Any) -> Any:
    """At an address: count bytes with a sign."""
    return carray(pointer(address), (count,), dtype=np.int8)


@piece
def sums(address: Any, count: Any) -> Any:
    """At an address: count numbers of int32."""
    return carray(pointer(address), (count,), dtype=np.int32)


@piece
def wholes(address: Any, count: Any) -> Any:
    """At an address: count numbers of int64."""
    return carray(pointer(address), (count,), dtype=np.int64)
