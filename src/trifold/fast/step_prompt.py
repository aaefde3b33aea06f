"""Attention of a prompt: many causal queries of a head; and the rotation of its queries and keys,
which are stored in a cache.

A few queries at a time are multiplied with the keys that they may read, and their scores stay in a
cache. Products are of numbers in the type of the keys, or in fp32 where there are no instructions
for bf16, with sums in fp32. Queries and results have the type of the products. The softmax is in
fp32; attention weights are rounded to the type of the products before they are multiplied.

T queries, S keys, D the size of a head. The last query reads all keys, and each earlier one reads
one key less.
"""

from typing import Any, NamedTuple

from trifold.fast.instruction import PROMPT_QUERIES
from trifold.fast.instruction_sets import products_of_keys
from trifold.fast.intrinsics import allocate, bfloat16_at, float32_at, release
from trifold.fast.lanes import (
    LANES,
    VECTOR,
    fill,
    load,
    load_float,
    store,
    store_float,
    store_pairs,
    transpose,
)
from trifold.fast.loops import F, by_type, subroutine
from trifold.fast.query_tile import QUERIES, multiply_blocks, softmax
from trifold.fast.step_attention import rotate
from trifold.fast.step_linear import store as store_row

LOG2_E = 1.4426950408889634


class PromptMemory(NamedTuple):
    """Addresses of what a thread needs, which one allocation holds.

    keys: (S / 16, words of a key, 16) words. values: (D / 16, words of S, 16) words. A word has 32
    bits: one number in fp32, or two in bf16, of values those of two keys. queries: (QUERIES, D).
    last: (16, D), the last keys. scores (QUERIES, S) and sums (QUERIES, D): fp32. weights:
    (QUERIES, S). S is a multiple of 16.
    """

    start: int
    keys: int
    values: int
    queries: int
    last: int
    scores: int
    sums: int
    weights: int


@subroutine
def _new_memory(keys: int, width: int, size: int) -> Any:
    """For so many keys, a multiple of 16, and numbers of so many bytes."""
    start = allocate(
        2 * keys * width * size
        + (QUERIES + LANES) * width * size
        + VECTOR
        + QUERIES * (4 * keys + 4 * width + size * keys)
    )
    first = -(-start // VECTOR) * VECTOR
    values = first + keys * width * size
    queries = values + keys * width * size
    last = queries + QUERIES * width * size
    scores = last + LANES * width * size
    sums = scores + QUERIES * 4 * keys
    return PromptMemory(
        start, first, values, queries, last, scores, sums, sums + QUERIES * 4 * width
    )


@subroutine
def _copy_rows(source: int, stride: int, count: int, size: int, target: int, rows: int) -> None:
    """`count` rows of so many bytes, then rows of zeros, to `target`."""
    for row in range(rows):
        for byte in range(0, size, VECTOR):
            numbers = fill(F(0))
            if row < count:
                numbers = load_float(source + row * stride + byte)
            store_float(target + row * size + byte, numbers)


@subroutine
def _widen_rows(stored: Any, source: int, stride: int, count: int, width: int, target: int) -> None:
    """At most 16 rows (count, width) of the type of an array -> (16, width) fp32, filled with
    zeros.
    """
    for row in range(LANES):
        for column in range(0, width, LANES):
            numbers = fill(F(0))
            if row < count:
                numbers = load(stored, source + row * stride + stored.itemsize * column)
            store_float(target + 4 * (row * width + column), numbers)


@subroutine
def _pack_keys(
    stored: Any, source: int, stride: int, count: int, width: int, size: int, memory: Any
) -> None:
    """Keys (count, width) at an address, of the type of an array -> memory.keys, of numbers of so
    many bytes.
    """
    target = memory.keys
    for first in range(0, count, LANES):
        rows = source + first * stride
        between = stride
        if stored.itemsize != size:
            _widen_rows(stored, rows, stride, count - first, width, memory.last)
            rows = memory.last
            between = size * width
        elif first + LANES > count:
            _copy_rows(rows, stride, count - first, size * width, memory.last, LANES)
            rows = memory.last
            between = size * width
        for byte in range(0, size * width, VECTOR):
            transpose(rows + byte, between, target)
            target += VECTOR * LANES


@by_type
def _pack_values(
    like: Any, stored: Any, source: Any, stride: Any, count: Any, width: Any, out: Any
) -> Any:
    """Values (count, width) at an address, in the type of `stored` -> `out`, as `memory.values` in
    the type of `like`. Returns the words of all keys.
    """
    if like.dtype.bitwidth == 16:

        def pairs(
            like: Any, stored: Any, source: Any, stride: Any, count: Any, width: Any, out: Any
        ) -> Any:
            words = (count + 1) // 2
            for pair in range(words):
                key = source + 2 * pair * stride
                other = key if 2 * pair + 1 == count else key + stride  # whose weight is 0
                for block in range(width // LANES):
                    byte = 2 * LANES * block
                    store_pairs(out + VECTOR * (block * words + pair), key + byte, other + byte)
            return words

        return pairs

    def single(
        like: Any, stored: Any, source: Any, stride: Any, count: Any, width: Any, out: Any
    ) -> Any:
        for key in range(count):
            for block in range(width // LANES):
                numbers = load(stored, source + key * stride + stored.itemsize * LANES * block)
                store_float(out + VECTOR * (block * count + key), numbers)
        return count

    return single


@subroutine
def _attend_tile(like: Any, op: Any, memory: Any, words: int, place: Any, rows: Any) -> None:
    """The queries from rows[0] up to rows[1]. words: of the values. place: their row and head."""
    row, head = place
    first, last = rows
    size = like.itemsize
    width = op.width
    past = op.length - op.queries
    read = past + last  # keys, by the last query
    vectors = -(-read // LANES)
    stride = -(-op.length // LANES) * LANES
    source = op.x + size * width * ((row * op.heads + head) * op.queries + first)
    _copy_rows(source, size * width, last - first, size * width, memory.queries, QUERIES)
    of_key = size * width // 4  # words
    target = memory.scores, 4 * stride
    key_stride = VECTOR * of_key
    multiply_blocks(
        like, memory.queries, 4 * of_key, memory.keys, key_stride, of_key, vectors, target
    )
    scale = F(op.scale * LOG2_E)
    inverses = float32_at(memory.queries, QUERIES)  # nothing reads the queries again
    for number in range(last - first):
        scores = memory.scores + 4 * stride * number
        weights = memory.weights + size * stride * number
        visible = past + first + number + 1
        _, inverses[number] = softmax(like, scores, weights, visible, vectors, scale)
    multiply_blocks(
        like,
        memory.weights,
        size * stride,
        memory.values,
        VECTOR * words,
        (size * read + 3) // 4,
        width // LANES,
        (memory.sums, 4 * width),
    )
    for number in range(last - first):
        out = op.out + size * width * ((row * op.queries + first + number) * op.heads + head)
        inverse = fill(inverses[number])
        for column in range(0, width, LANES):
            sums = load_float(memory.sums + 4 * (number * width + column))
            store(like, out + size * column, sums * inverse)


def _new_attention(array_at: Any, stored_at: Any) -> Any:
    """The instruction for products in a type, of keys that are stored in a type: those of the
    arrays that these functions make.
    """

    @subroutine
    def attend(op: Any, units: range) -> None:
        """Attention of some units: PROMPT_QUERIES queries of a row and head."""
        like = array_at(op.out, 1)
        stored = stored_at(op.keys, 1)
        size = like.itemsize
        width = op.width
        parts = -(-op.queries // PROMPT_QUERIES)
        memory = _new_memory(-(-op.length // LANES) * LANES, width, size)
        for unit in units:
            head = unit // parts % op.heads
            row = unit // parts // op.heads
            first = unit % parts * PROMPT_QUERIES
            last = min(first + PROMPT_QUERIES, op.queries)
            read = op.length - op.queries + last
            kv_head = head // (op.heads // op.kv_heads)
            start = stored.itemsize * (row * op.row_stride + kv_head * op.head_stride)
            stride = stored.itemsize * op.key_stride
            _pack_keys(stored, op.keys + start, stride, read, width, size, memory)
            values = op.values + start
            words = _pack_values(like, stored, values, stride, read, width, memory.values)
            for query in range(first, last, QUERIES):
                rows = query, min(query + QUERIES, last)
                _attend_tile(like, op, memory, words, (row, head), rows)
        release(memory.start)

    return attend


@subroutine
def _attend_nothing(op: Any, units: range) -> None:
    """On processors without loops on lanes; see `attention.supports_prompt_attention`."""


# --- queries and keys -----------------------------------------------------------------------------


def _new_rotation(array_at: Any, stored_at: Any) -> Any:
    """The instruction for queries and keys of the types of arrays that these functions make."""

    @subroutine
    def rotate_tokens(op: Any, units: range) -> None:
        """Some tokens, in fp32: rotated queries x -> out (R, H, T, D), rotated new keys and new
        values -> the cache, from `slot` on.
        """
        width = op.width
        memory = allocate(4 * width)
        rotated = float32_at(memory, width)
        for unit in units:
            row = unit // op.queries
            token = unit % op.queries
            for head in range(op.heads):
                x = float32_at(op.x + 4 * width * (unit * op.heads + head), width)
                rotate(x, op, unit, rotated)
                place = width * ((row * op.heads + head) * op.queries + token)
                store_row(rotated, array_at(op.out, place + width)[place:])
            for head in range(op.kv_heads):
                new = 4 * width * (unit * op.kv_heads + head)
                place = row * op.row_stride + head * op.head_stride
                place += (op.slot + token) * op.key_stride
                rotate(float32_at(op.new_keys + new, width), op, unit, rotated)
                store_row(rotated, stored_at(op.keys, place + width)[place:])
                values = float32_at(op.new_values + new, width)
                store_row(values, stored_at(op.values, place + width)[place:])
        release(memory)

    return rotate_tokens


# --- this processor -------------------------------------------------------------------------------

_ARRAY_AT = {"float32": float32_at, "bfloat16": bfloat16_at}


@subroutine
def _do_nothing(op: Any, units: range) -> None:
    """On processors without loops on lanes."""


def _of_keys(new: Any, precision: str) -> Any:
    """The instruction for keys of a precision, if this processor multiplies them."""
    products = products_of_keys(precision)
    return new(_ARRAY_AT[products], _ARRAY_AT[precision]) if products else _do_nothing


prompt_attention_in_float32 = _of_keys(_new_attention, "float32")
prompt_attention_in_bfloat16 = _of_keys(_new_attention, "bfloat16")
rotate_tokens_in_float32 = _of_keys(_new_rotation, "float32")
rotate_tokens_in_bfloat16 = _of_keys(_new_rotation, "bfloat16")
