"""Text larger than memory: written, made into a cache of tokens, opened, read at random, and counted whole.

    python benchmarks/data/big_corpus.py --size 10 --folder /somewhere/large [--tokenizer byte-bpe|bytes] [--count]

Every step is a process of its own, so that its memory can be told: the largest resident size (files that are mapped
count too) less what the process had after its imports. The text is invented: words of a Zipf distribution, in lines of
some 400 characters. `--count` also reads one whole epoch under two ranks, then three after a resume, and compares how
often every id was read with how often it is in the cache. What is there already is not made again; remove the folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trifold.batches import Blocks, ShuffledRows, deal
from trifold.data import DataSettings, Encoder, TokenCache, iter_documents, open_tokens
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer

WIDTH = 1024
BLOCK = 16 << 20
DOCUMENT = 400
VOCABULARY = 8000


def resident() -> float:
    """The largest resident size of this process so far, in MB."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would count what the parent had before this program began
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def words(rng: np.random.Generator) -> list[str]:
    syllables = [c + v for c in "bcdfghklmnprstvwz" for v in "aeiouäöü"]
    drawn = rng.integers(0, len(syllables), (50_000, 4)).tolist()
    sizes = rng.integers(1, 5, 50_000).tolist()
    found = {"".join(syllables[n] for n in row[:size]) for row, size in zip(drawn, sizes, strict=True)}
    return sorted(found)


def write(folder: Path, size: float) -> dict[str, Any]:
    """The corpus: so many GB, the same on every machine."""
    path = folder / "corpus.txt"
    wanted = int(size * 1e9)
    start = time.perf_counter()
    if not path.is_file() or path.stat().st_size < wanted:
        rng = np.random.default_rng(0)
        vocabulary = np.array(words(rng), dtype=object)
        rng.shuffle(vocabulary)
        share = 1 / np.arange(2, len(vocabulary) + 2)
        cumulative = np.cumsum(share / share.sum())
        with path.open("wb") as file:
            written = 0
            while written < wanted:
                chosen = vocabulary[
                    np.searchsorted(cumulative, rng.random(BLOCK // 7)).clip(max=len(vocabulary) - 1)
                ]
                text = " ".join(chosen)
                lines = "\n".join(text[place : place + DOCUMENT] for place in range(0, len(text), DOCUMENT))
                written += file.write(lines.encode() + b"\n")
    return {"GB": path.stat().st_size / 1e9, "seconds": time.perf_counter() - start}


def encoder(folder: Path, kind: str) -> Encoder:
    """Bytes as they are, or a byte-level BPE trained on the beginning of the text."""
    if kind == "bytes":

        def raw(texts: Sequence[str]) -> tuple[Any, Any, int]:
            parts = [text.encode() for text in texts]
            lengths = np.array([len(part) for part in parts], np.int64)
            return np.frombuffer(b"".join(parts), np.uint8), lengths, int(lengths.sum())

        return Encoder(raw, "bytes", 256)
    file = folder / "tokenizer.json"
    if not file.is_file():
        documents = iter_documents(str(folder / "corpus.txt"), DataSettings())
        sample = [next(documents).text for _ in range(20_000)]
        make_tokenizer(sample, TokenizerSettings(kind="byte-bpe", vocab_size=VOCABULARY)).save(folder)
    tokenizer = Tokenizer.load(file)

    def cut(texts: Sequence[str]) -> tuple[Any, Any, int]:
        ids = tokenizer.encode(texts)
        lengths = np.array([len(one) for one in ids], np.int64)
        flat = np.fromiter((token for one in ids for token in one), np.int32, int(lengths.sum()))
        return flat, lengths, sum(len(text.encode()) for text in texts)

    return Encoder(cut, tokenizer.encoding_digest, tokenizer.vocab_size)


def cache_of(folder: Path, kind: str) -> TokenCache:
    settings = DataSettings(cache=str(folder / "cache"))
    report = partial(print, file=sys.stderr, flush=True)
    return open_tokens(str(folder / "corpus.txt"), settings, encoder(folder, kind), report=report)


def build(folder: Path, kind: str) -> dict[str, Any]:
    start = time.perf_counter()
    cache = cache_of(folder, kind)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": len(cache.ids),
        "documents": len(cache),
        "GB": cache.ids.nbytes / 1e9,
    }


def open_again(folder: Path, kind: str) -> dict[str, Any]:
    ready = encoder(folder, kind)
    settings = DataSettings(cache=str(folder / "cache"))
    start = time.perf_counter()
    cache = open_tokens(str(folder / "corpus.txt"), settings, ready)
    first = cache.document(len(cache) // 2)
    return {"seconds": time.perf_counter() - start, "tokens in the middle document": len(first)}


def read(folder: Path, kind: str, rows: int = 20_000) -> dict[str, Any]:
    """Rows of an epoch in their random order; and some documents, compared with what tokenising them gives now."""
    ready, cache = encoder(folder, kind), cache_of(folder, kind)
    blocks = Blocks.of_epoch(cache.starts, WIDTH, seed=1, epoch=0)
    plan = ShuffledRows(len(blocks), 16, seed=1, epoch=0)
    start, tokens = time.perf_counter(), 0
    for batch in plan[: rows // 16]:
        _, places, lengths = blocks.chunks(batch)
        where = np.repeat(places - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        tokens += len(cache.ids[where])
    seconds = time.perf_counter() - start
    documents = iter_documents(str(folder / "corpus.txt"), DataSettings())
    for number in range(1000):
        assert np.array_equal(cache.document(number), ready.encode([next(documents).text])[0])
    return {
        "rows": rows,
        "tokens a second": tokens / seconds,
        "ms a batch of 16 rows": 1000 * seconds / (rows // 16),
    }


def count(folder: Path, kind: str) -> dict[str, Any]:
    """One epoch: two ranks until the middle, three from there on; every id is to be read as often as it is there."""
    cache = cache_of(folder, kind)
    blocks = Blocks.of_epoch(cache.starts, WIDTH, seed=1, epoch=0)
    plan = ShuffledRows(len(blocks), 64, seed=1, epoch=0)
    start = time.perf_counter()
    steps = len(plan) // 4
    read, there = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for number in range(len(plan)):
        ranks, batch = 2 if number < 2 * steps else 3, plan[number]
        for rank in range(ranks):
            share = deal(blocks.lengths, batch, number, accumulate=ranks, rank=rank, world=ranks)
            rows = np.concatenate([batch[:0], *share.parts])
            _, places, lengths = blocks.chunks(rows)
            where = np.repeat(places - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            read += np.bincount(cache.ids[where], minlength=1 << 16)
    for place in range(0, len(cache.ids), 1 << 22):
        there += np.bincount(cache.ids[place : place + (1 << 22)], minlength=1 << 16)
    assert np.array_equal(read, there), "an id was lost or doubled"
    return {"tokens": int(read.sum()), "ids": int((read > 0).sum()), "seconds": time.perf_counter() - start}


STEPS = {"build": build, "open": open_again, "read": read, "count": count}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1.0, help="GB of text")
    parser.add_argument("--folder", type=Path, default=Path("big-corpus"))
    parser.add_argument("--tokenizer", choices=["byte-bpe", "bytes"], default="byte-bpe")
    parser.add_argument("--count", action="store_true", help="also read a whole epoch and count every id")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        before = resident()
        found = STEPS[asked.step](asked.folder, asked.tokenizer)
        print(json.dumps(found | {"memory growth in MB": resident() - before}))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    print("write", shown(write(asked.folder, asked.size)), flush=True)
    for step in STEPS:
        if step == "count" and not asked.count:
            continue
        command = [sys.executable, __file__, "--step", step, "--folder", str(asked.folder)]
        done = subprocess.run(
            [*command, "--tokenizer", asked.tokenizer], check=False, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"{step}: failed")
        print(step, shown(json.loads(done.stdout)), flush=True)


def shown(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,.3g}" if isinstance(value, float) and value < 1000 else f"{name} {value:,.0f}"
        for name, value in values.items()
    )


if __name__ == "__main__":
    main()
