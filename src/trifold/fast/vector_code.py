"""LLVM code on vectors of 16 numbers of 32 bits, which a processor without such wide registers
computes in parts.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from trifold.fast.block_weight import PANEL

WORD_TYPE = ir.IntType(32)
LONG_TYPE = ir.IntType(64)
FLOAT_TYPE = ir.FloatType()
WORDS = ir.VectorType(WORD_TYPE, PANEL)
FLOATS = ir.VectorType(FLOAT_TYPE, PANEL)
HALVES = ir.VectorType(ir.HalfType(), PANEL)


class VectorCode:
    """Appends code to that of an LLVM builder. Addresses are int64."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def moved(self, address: Any, steps: Any, size: int) -> Any:
        """The address so many steps of that size further."""
        return self.builder.add(address, self.builder.mul(steps, long(size)))

    def load(self, address: Any, kind: Any, at: int = 0) -> Any:
        """A value of that type, `at` bytes behind an address."""
        place = self.builder.add(address, long(at))
        loaded = self.builder.load(self.builder.inttoptr(place, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def store(self, address: Any, at: int, value: Any) -> None:
        """Store a vector `at` bytes behind an address."""
        place = self.builder.add(address, long(at))
        pointer = self.builder.inttoptr(place, value.type.as_pointer())
        self.builder.store(value, pointer).align = 2

    def halves(self, address: Any, at: int = 0) -> Any:
        """16 float16 in fp32."""
        return self.builder.fpext(self.load(address, HALVES, at), FLOATS)

    def splat(self, value: Any) -> Any:
        """A vector of 16 times the same value."""
        kind = ir.VectorType(value.type, PANEL)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(WORD_TYPE, 0))
        return self.builder.shuffle_vector(first, undefined, words(0))

    def shuffled(self, one: Any, other: Any, lanes: list[int]) -> Any:
        """Elements of two vectors by their numbers."""
        numbers = ir.Constant(ir.VectorType(WORD_TYPE, len(lanes)), lanes)
        return self.builder.shuffle_vector(one, other, numbers)

    def call(self, name: str, result: Any, *values: Any) -> Any:
        """Call a function of LLVM."""
        kind = ir.FunctionType(result, [value.type for value in values])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, values)

    def loop(
        self, count: Any, firsts: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """The results of body(index, values) for the last index below `count`, which is at least 1.
        The values are the results for the previous index, and at index 0 the `firsts`.
        """
        builder = self.builder
        before = builder.block
        inside = builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(LONG_TYPE)
        values = [builder.phi(first.type) for first in firsts]
        results = body(index, values)
        following = builder.add(index, long(1))
        end = builder.block
        phis = [index, *values]
        for phi, first, last in zip(phis, [long(0), *firsts], [following, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, end)
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        builder.position_at_end(after)
        return results

    def prefetch(self, address: Any, at: int) -> None:
        """Load the line `at` bytes behind an address into the second-level cache."""
        place = self.builder.inttoptr(self.builder.add(address, long(at)), cgutils.voidptr_t)
        options = [ir.Constant(WORD_TYPE, number) for number in (0, 2, 1)]
        self.call("llvm.prefetch.p0", ir.VoidType(), place, *options)


def long(number: int) -> Any:
    """A constant."""
    return ir.Constant(LONG_TYPE, number)


def words(number: int) -> Any:
    """A vector of 16 times the same constant."""
    return ir.Constant(WORDS, [number] * PANEL)
