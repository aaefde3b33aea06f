"""A product of two small matrices in the vector registers of AVX-512, for compiled loops."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # numbers of a vector register
BYTES = 4  # of a number
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INDEX = ir.IntType(64)


def tile_of(rows: int, vectors: int) -> Any:
    """A function for compiled code: a (rows, K) · b (K, C) + c (C,) -> out (rows, C), with C = 16 ·
    vectors and K > 0.

    Matrices are given by their address and the distance of their rows in numbers. Each result is a
    sum in the order of K, so its bits do not depend on other rows.
    """

    @intrinsic
    def tile(
        typing: Any,
        a: Any,
        a_distance: Any,
        b: Any,
        b_distance: Any,
        count: Any,
        c: Any,
        out: Any,
        out_distance: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _TileCode(builder, rows, vectors).write(*values)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return tile


class _TileCode:
    """Writes the code of a tile, whose sums stay in registers."""

    def __init__(self, builder: Any, rows: int, vectors: int) -> None:
        self.builder = builder
        self.rows = range(rows)
        self.vectors = range(vectors)
        signature = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        self.multiply_add = cgutils.get_or_insert_function(
            builder.module, signature, "llvm.fma.v16f32"
        )

    def write(
        self,
        a: Any,
        a_distance: Any,
        b: Any,
        b_distance: Any,
        count: Any,
        c: Any,
        out: Any,
        out_distance: Any,
    ) -> None:
        """See `tile_of`."""
        builder = self.builder
        bias = [self.load(self.at(c, vector * LANES)) for vector in self.vectors]
        a_rows = [self.at(a, builder.mul(a_distance, _INDEX(row))) for row in self.rows]
        before = builder.block
        loop = builder.append_basic_block("tile")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_INDEX)
        step.add_incoming(_INDEX(0), before)
        sums = [[builder.phi(_VECTOR) for _ in self.vectors] for _ in self.rows]
        b_row = self.at(b, builder.mul(b_distance, step))
        factors = [self.load(self.at(b_row, vector * LANES)) for vector in self.vectors]
        for a_row, of_row in zip(a_rows, sums, strict=True):
            x = self.broadcast(self.at(a_row, step))
            for vector, total in enumerate(of_row):
                added = builder.call(self.multiply_add, [x, factors[vector], total])
                total.add_incoming(bias[vector], before)
                total.add_incoming(added, loop)
                of_row[vector] = added
        after = builder.add(step, _INDEX(1))
        step.add_incoming(after, loop)
        end = builder.append_basic_block("tile_end")
        builder.cbranch(builder.icmp_signed("<", after, count), loop, end)
        builder.position_at_end(end)
        for row, of_row in zip(self.rows, sums, strict=True):
            out_row = self.at(out, builder.mul(out_distance, _INDEX(row)))
            for vector, total in enumerate(of_row):
                place = self.at(out_row, vector * LANES)
                builder.store(total, self.pointer(place, _VECTOR), align=BYTES)

    def at(self, address: Any, number: Any) -> Any:
        """The address of the number after so many others."""
        if isinstance(number, int):
            number = _INDEX(number)
        return self.builder.add(address, self.builder.mul(number, _INDEX(BYTES)))

    def pointer(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any) -> Any:
        """The vector at an address."""
        return self.builder.load(self.pointer(address, _VECTOR), align=BYTES)

    def broadcast(self, address: Any) -> Any:
        """A vector of the number at an address."""
        number = self.builder.load(self.pointer(address, ir.FloatType()), align=BYTES)
        lane = ir.IntType(32)
        single = self.builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, lane(0))
        zeros = ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
        return self.builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), zeros)
