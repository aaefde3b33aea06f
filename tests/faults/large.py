"""Text larger than memory, made into tokens by processes that are killed and get into each other's way."""

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

from trifold.batches import Blocks, ShuffledRows, deal
from trifold.data import DataSettings, Encoder, TokenCache, open_tokens

CORPUS_BYTES = 32 << 20
MEMORY = 64 << 20  # that a process may grow by, whatever the size of the corpus
GLANCE = 4 << 20  # that may be read of it to open its cache: blocks of the text
SOON = 2.0  # seconds
PART = 4 << 20
WIDTH = 512


def large_text_is_cached(box: Box) -> None:
    """A corpus is made into tokens by a process that is killed, then by two at once, in memory that does not grow with
    it; opened at once, without being read; and every token is read once in an epoch, over a change in the number of
    ranks.
    """
    corpus = box.folder / "corpus.txt"
    block = "".join(_line(box.rng) for _ in range(4000)).encode()
    times = CORPUS_BYTES // len(block)
    with corpus.open("wb") as file:
        for _ in range(times):
            file.write(block)
    settings = DataSettings(cache=str(box.folder / "cache"))

    def build() -> int:
        open_tokens(str(corpus), settings, BYTES, part_bytes=PART, workers=2)
        return 0

    forked(build, after=box.rng.uniform(0.05, 0.6), number=signal.SIGKILL, log=box.log)
    counted = _counting(build, box.folder)
    box.expect(forked(_beside(counted, counted), log=box.log) == 0, "two at once: not made")
    grown = max(cost.memory for cost in _costs(box.folder))  # one of them only waits; which, nobody knows
    box.expect(grown <= MEMORY, f"{grown >> 20:,} MB of memory for {times * len(block) >> 20:,} MB of text")
    box.expect([forked(counted, log=box.log) for _ in range(3)] == [0, 0, 0], "made, and not to be opened")
    costs = _costs(box.folder)
    read, soonest = max(cost.read for cost in costs), min(cost.seconds for cost in costs)
    box.expect(
        read <= GLANCE and soonest <= SOON, f"opened in {soonest:.2f} s, for which {read:,} bytes were read"
    )
    cache = open_tokens(str(corpus), settings, BYTES, part_bytes=PART)
    lines = block.split(b"\n")[:-1]
    box.expect(len(cache) == times * len(lines), f"{len(cache):,} documents, not {times * len(lines):,}")
    for number in box.rng.sample(range(len(cache)), 200):
        found = cache.document(number).astype(np.uint8).tobytes()
        box.expect(found == lines[number % len(lines)], f"document {number} is another")
    there = np.bincount(np.frombuffer(block, np.uint8), minlength=256) * times
    there[ord("\n")] = 0
    box.expect(bool((_read_by_ranks(cache, box.rng) == there).all()), "an id was lost or doubled")


def _line(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(3, 15))) + "\n"


def _bytes_of(texts: Sequence[str]) -> tuple[NDArray[np.integer], NDArray[np.int64], int]:
    raw = [text.encode() for text in texts]
    lengths = np.array(list(map(len, raw)), np.int64)
    return np.frombuffer(b"".join(raw), np.uint8), lengths, int(lengths.sum())


BYTES = Encoder(_bytes_of, "bytes", 256)


class Cost(NamedTuple):
    """What some work took: seconds, bytes by which the memory of its process grew, bytes that it has read of files."""

    seconds: float
    memory: int
    read: int


def _counting(work: Callable[[], int], folder: Path) -> Callable[[], int]:
    def counted() -> int:
        memory, read, start = _told("status", "VmRSS"), _told("io", "rchar"), time.perf_counter()
        code = work()
        seconds = time.perf_counter() - start
        cost = Cost(seconds, 1024 * (_told("status", "VmHWM") - memory), _told("io", "rchar") - read)
        (folder / f"cost-{os.getpid()}").write_text(json.dumps(cost), encoding="utf-8")
        return code

    return counted


def _costs(folder: Path) -> list[Cost]:
    """Of all that was counted since one last asked."""
    files = list(folder.glob("cost-*"))
    costs = [Cost(*json.loads(file.read_text(encoding="utf-8"))) for file in files]
    for file in files:
        file.unlink()
    return costs


def _told(kind: str, what: str) -> int:
    """What the system tells of this process, in the unit in which it does; 0 where it does not."""
    try:
        found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self", kind).read_text("utf-8"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _beside(one: Callable[[], int], other: Callable[[], int]) -> Callable[[], int]:
    """Both at once, in two processes."""

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
    """How often each id is read in an epoch that some ranks begin and others, in another number, end."""
    blocks = Blocks(cache.starts, WIDTH, shift=5)
    plan = ShuffledRows(len(blocks), 64, seed=rng.randrange(100), epoch=0)
    accumulate, worlds, workers = rng.choice([1, 2, 4]), rng.choices([1, 2, 3, 4], k=2), rng.choice([1, 2])
    change = len(plan) // (2 * accumulate) * accumulate
    read = np.zeros(256, np.int64)
    for number in range(len(plan)):
        world = worlds[number >= change]
        for rank in range(world):
            share = deal(
                blocks.lengths, plan[number], number % accumulate,
                accumulate=accumulate, rank=rank, world=world, workers=workers,
            )  # fmt: skip
            for rows in share.parts:
                starts, lengths = blocks.chunks(rows)
                where = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
                read += np.bincount(cache.ids[where], minlength=256)
    return read
