"""One decoding step of a whole stack, compiled: rows of instructions that several threads work off together.

A step for a few rows reads every weight once and does little else, so that nothing may stand between two products: no
operator, no allocation, no waking of threads. The layers are therefore written down beforehand as an array of LINEs
(program.py does that), and `_follow` goes through it. Each line is cut into tasks which the threads take from a
counter, whoever is free the next one; a line that reads what others write waits until their tasks are done.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numba import carray, cfunc, types
from numpy.typing import NDArray

from trifold.fast.instruction import AHEAD, ATTENTION, FLOAT, LINE, NORM, PRODUCT, TO_BYTES
from trifold.fast.intrinsics import brains, floats, give_way, pointer, raised, seen
from trifold.fast.loops import piece
from trifold.fast.step_attention import attention
from trifold.fast.step_products import approach, beginning, norm, product, row_from_bytes, row_to_bytes

Array: TypeAlias = NDArray[Any]

# Looks at a counter, of a nanosecond or two, before the processor is offered to somebody else.
PATIENCE = 100_000
MEANWHILE = 256  # bytes that are asked for between two looks
MOST_AHEAD = 2**18  # bytes that are asked for while others finish: they have to stay in the second cache
SOURCES = ("intrinsics", "instruction", "loops", "step_attention", "step_loops", "step_products")


@piece
def _await(done: Array, number: int, tasks: int, start: int, end: int) -> int:
    """Go on when all tasks of a line are done; until then, ask for what lies from start to end. Gives the new start."""
    looks = 0
    while seen(done, number) < tasks:
        if start < end:
            approach(start, start + MEANWHILE)
            start += MEANWHILE
        looks += 1
        if looks > PATIENCE:
            give_way()
    return start


@piece
def _units(line: Any, units: range) -> None:
    """Some units of a line that is no product."""
    far = np.int64(1) << np.int64(60)  # how long a cache is is told by its strides
    if line.op == ATTENTION:
        if line.kind == FLOAT:
            attention(line, units, floats(line.keys, far), floats(line.values, far))
        else:
            attention(line, units, brains(line.keys, far), brains(line.values, far))
        return
    for row in units:
        if line.op == NORM:
            norm(line, row)
        elif line.op == TO_BYTES:
            row_to_bytes(line, row)
        else:
            row_from_bytes(line, row)


@piece
def _follow(program: Array, drawn: Array, done: Array, me: int, threads: int) -> None:
    """Work off the lines, together with whoever was given the same arrays; returns when all is done.

    program: (n,) of LINE, which nobody changes any more. drawn: (threads · n,) zeros, the tasks that were taken of each
    thread's part of each line; done: (n,) zeros, those of a line that are finished. A thread goes through its own part
    from end to end, as memory likes it, then helps with those of others. Only tasks that were taken are waited for,
    never a thread: one that comes late, or has to leave its processor to others, finds less to do.
    """
    count, complete = program.shape[0], 0
    for number in range(count):
        line, finished = program[number], 0
        for turn in range(threads):
            part = (me + turn) % threads
            first, last = line.tasks * part // threads, line.tasks * (part + 1) // threads
            task = first + raised(drawn, part * count + number, 1)
            start = end = 0
            if line.op == PRODUCT and task < last:
                start, end = (
                    beginning(line, task),
                    min(beginning(line, task) + MOST_AHEAD, beginning(line, last)),
                )
                approach(start, start + AHEAD)
                start += AHEAD
            if line.waits:
                while complete < number:
                    start = _await(done, complete, program[complete].tasks, start, end)
                    complete += 1
            while task < last:
                if line.op == PRODUCT:
                    product(line, task)
                else:
                    _units(line, range(task * line.portion, min(line.units, (task + 1) * line.portion)))
                finished += 1
                task = first + raised(drawn, part * count + number, 1)
        if finished:
            raised(done, number, finished)
    while complete < count:
        _await(done, complete, program[complete].tasks, 0, 0)
        complete += 1


@piece
def _work(job: Any) -> None:
    """What each thread does. job: (5,) the address of the lines, how many there are, the address of the counts (what
    each thread has drawn, what is done), how many threads there are at most, and how many have begun.
    """
    about = carray(job, 5)
    count, threads = about[1], about[3]
    program = carray(pointer(about[0]), (count,), dtype=LINE)
    drawn = carray(pointer(about[2]), (threads * count,), dtype=np.int64)
    done = carray(pointer(about[2] + 8 * threads * count), (count,), dtype=np.int64)
    _follow(program, drawn, done, raised(about, 4, 1), threads)


@cache
def work() -> Any:
    """`_work`, compiled, as other languages call a function: by its address.

    What numba has compiled and kept it knows by this file alone, and by what the function holds on to: the stamp.
    """
    folder = Path(__file__).parent
    sources = b"".join((folder / f"{name}.py").read_bytes() for name in SOURCES)
    stamp = int.from_bytes(sha256(sources).digest()[:7])

    def work_of_a_thread(job: Any) -> None:
        if stamp != 0:
            _work(job)

    return cfunc(types.void(types.CPointer(types.int64)), cache=True)(work_of_a_thread)
