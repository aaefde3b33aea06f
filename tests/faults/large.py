"""Token caches of large text, built by processes that are killed or run at the same time."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.faults.runs import Box, forked
from tests.faults.texts import WORDS

from trifold.batches import Blocks, ShuffledRows, deal_batch
from trifold.data import DataSettings, Encoder, TokenCache, open_tokens


class Sizes(NamedTuple):
    """Bytes of the text, of one of its parts, and by which a process may grow; and the seconds after
    which the first process is killed at the latest, when it has not encoded half of the text.
    """

    corpus: int
    part: int
    memory: int
    killed: float


# The first trial, which also finds the planted bugs, is small. A process grows by 24 MB with either.
SMALL = Sizes(8 << 20, 1 << 20, 32 << 20, 0.15)
LARGE = Sizes(32 << 20, 4 << 20, 64 << 20, 0.6)
GLANCE = 4 << 20  # bytes read to open the cache: a few blocks of the text
SOON = 2.0  # seconds
WIDTH = 4096


def large_text_is_cached(box: Box) -> None:
    """A process that encodes a corpus is killed, then two do it at the same time, in bounded
    memory. Opening the cache does not read the corpus. An epoch reads every token once, also if the
    number of ranks changes."""
    sizes = LARGE if box.number else SMALL
    corpus = box.folder / "corpus.txt"
    block = "".join(_line(box.rng) for _ in range(4000)).encode()
    times = sizes.corpus // len(block)
    with corpus.open("wb") as file:
        for _ in range(times):
            file.write(block)
    settings = DataSettings(cache=str(box.folder / "cache"))

    def build() -> int:
        open_tokens(str(corpus), settings, BYTES, part_bytes=sizes.part, workers=2)
        return 0

    forked(build, after=box.rng.uniform(0.05, sizes.killed), number=signal.SIGKILL, log=box.log)
    counted = _counting(build, box.folder)
    box.expect(
        forked(_both(counted, counted), log=box.log) == 0, "two processes: the cache was not built"
    )
    grown = max(cost.memory for cost in _costs(box.folder))  # one of the two only waits
    box.expect(
        grown <= sizes.memory,
        f"{grown >> 20:,} MB of memory for {times * len(block) >> 20:,} MB of text",
    )
    box.expect(
        [forked(counted, log=box.log) for _ in range(3)] == [0, 0, 0], "the cache cannot be opened"
    )
    costs = _costs(box.folder)
    read, soonest = max(cost.read for cost in costs), min(cost.seconds for cost in costs)
    box.expect(
        read <= GLANCE and soonest <= SOON,
        f"opened in {soonest:.2f} s, for which {read:,} bytes were read",
    )
    cache = open_tokens(str(corpus), settings, BYTES, part_bytes=sizes.part)
    lines = block.split(b"\n")[:-1]
    box.expect(
        len(cache) == times * len(lines), f"{len(cache):,} documents, not {times * len(lines):,}"
    )
    for number in box.rng.sample(range(len(cache)), 200):
        found = cache.document(number).astype(np.uint8).tobytes()
        box.expect(found == lines[number % len(lines)], f"document {number} differs")
    there = np.bincount(np.frombuffer(block, np.uint8), minlength=256) * times
    there[ord("\n")] = 0
    box.expect(
        bool((_read_by_ranks(cache, box.rng) == there).all()), "an id was lost or duplicated"
    )


def _line(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(3, 15))) + "\n"


def _bytes_of(texts: Sequence[str]) -> tuple[NDArray[np.integer], NDArray[np.int64], int]:
    raw = [text.encode() for text in texts]
    lengths = np.array(list(map(len, raw)), np.int64)
    return np.frombuffer(b"".join(raw), np.uint8), lengths, int(lengths.sum())


BYTES = Encoder(_bytes_of, "bytes", 256)


class Cost(NamedTuple):
    """Seconds, growth of memory in bytes, and bytes read from files."""

    seconds: float
    memory: int
    read: int


def _counting(work: Callable[[], int], folder: Path) -> Callable[[], int]:
    def counted() -> int:
        memory, read, start = (
            _proc_value("status", "VmRSS"),
            _proc_value("io", "rchar"),
            time.perf_counter(),
        )
        code = work()
        seconds = time.perf_counter() - start
        cost = Cost(
            seconds,
            1024 * (_proc_value("status", "VmHWM") - memory),
            _proc_value("io", "rchar") - read,
        )
        (folder / f"cost-{os.getpid()}").write_text(json.dumps(cost), encoding="utf-8")
        return code

    return counted


def _costs(folder: Path) -> list[Cost]:
    """The costs recorded since the last call."""
    files = list(folder.glob("cost-*"))
    costs = [Cost(*json.loads(file.read_text(encoding="utf-8"))) for file in files]
    for file in files:
        file.unlink()
    return costs


def _proc_value(kind: str, what: str) -> int:
    """A value of this process in /proc, in its unit there; 0 if it is not available."""
    try:
        found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self", kind).read_text("utf-8"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _both(one: Callable[[], int], other: Callable[[], int]) -> Callable[[], int]:
    """Both at the same time, in two processes."""

    def work() -> int:
        child = os.fork()
        if child == 0:
            try:
                os._exit(one())
            finally:
                os._exit(1)
        code = other()
        return code or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return work


def _read_by_ranks(cache: TokenCache, rng: Random) -> NDArray[np.int64]:
    """How often each id is read in an epoch in which the number of ranks changes."""
    blocks = Blocks(cache.starts, WIDTH, shift=5)
    plan = ShuffledRows(len(blocks), 64, seed=rng.randrange(100), epoch=0)
    accumulate, worlds, workers = (
        rng.choice([1, 2, 4]),
        rng.choices([1, 2, 3, 4], k=2),
        rng.choice([1, 2]),
    )
    change = len(plan) // (2 * accumulate) * accumulate
    read = np.zeros(256, np.int64)
    for number in range(len(plan)):
        world = worlds[number >= change]
        for rank in range(world):
            share = deal_batch(
                blocks.lengths, plan[number], number % accumulate,
                accumulate=accumulate, rank=rank, world=world, workers=workers,
            )  # fmt: skip
            for rows in share.parts:
                starts, lengths = blocks.select(rows)
                where = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(
                    lengths.sum()
                )
                read += np.bincount(cache.ids[where], minlength=256)
    return read
