"""Token caches of text larger than memory: write text, build a cache, open it, read it at random,
count all tokens.

    python benchmarks/data/big_corpus.py --size 10 --folder /somewhere/large [--tokenizer
    byte-bpe|bytes] [--count]

Every step runs in its own process, which measures its memory: the peak resident size (memory-mapped
files included) minus the size after the imports. The text is random words with a Zipf distribution,
in lines of 400 characters. `--count` also reads one epoch, first with two ranks, then with three
after a resume, and compares the number of times every id was read with its number in the cache.
Existing files are reused; remove the folder to start again."""

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

from trifold.batches import Blocks, ShuffledRows, deal_batch
from trifold.data import DataSettings, Encoder, TokenCache, open_tokens
from trifold.data.documents import open_documents
from trifold.ragged import positions
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer

WIDTH = 1024
BLOCK_BYTES = 16 << 20
DOCUMENT_CHARACTERS = 400
VOCABULARY = 8000


def peak_memory() -> float:
    """The peak resident size of this process in MB."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage includes the memory of the parent before exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def make_words(rng: np.random.Generator) -> list[str]:
    syllables = [c + v for c in "bcdfghklmnprstvwz" for v in "aeiouäöü"]
    rows = rng.integers(0, len(syllables), (50_000, 4)).tolist()
    sizes = rng.integers(1, 5, 50_000).tolist()
    found = {
        "".join(syllables[n] for n in row[:size]) for row, size in zip(rows, sizes, strict=True)
    }
    return sorted(found)


def write_text(folder: Path, size: float) -> dict[str, Any]:
    """Write `size` GB of text, the same on every machine."""
    path = folder / "corpus.txt"
    total = int(size * 1e9)
    began = time.perf_counter()
    if not path.is_file() or path.stat().st_size < total:
        rng = np.random.default_rng(0)
        vocabulary = np.array(make_words(rng), dtype=object)
        rng.shuffle(vocabulary)
        share = 1 / np.arange(2, len(vocabulary) + 2)
        cumulative = np.cumsum(share / share.sum())
        with path.open("wb") as file:
            written = 0
            while written < total:
                chosen = vocabulary[
                    np.searchsorted(cumulative, rng.random(BLOCK_BYTES // 7)).clip(
                        max=len(vocabulary) - 1
                    )
                ]
                text = " ".join(chosen)
                starts = range(0, len(text), DOCUMENT_CHARACTERS)
                lines = "\n".join(text[start : start + DOCUMENT_CHARACTERS] for start in starts)
                written += file.write(lines.encode() + b"\n")
    return {"GB": path.stat().st_size / 1e9, "seconds": time.perf_counter() - began}


def make_encoder(folder: Path, kind: str) -> Encoder:
    """Bytes, or a byte-level BPE tokenizer trained on the start of the text."""
    if kind == "bytes":

        def encode_bytes(texts: Sequence[str]) -> tuple[Any, Any, int]:
            parts = [text.encode() for text in texts]
            lengths = np.array([len(part) for part in parts], np.int64)
            return np.frombuffer(b"".join(parts), np.uint8), lengths, int(lengths.sum())

        return Encoder(encode_bytes, "bytes", 256)
    file = folder / "tokenizer.json"
    if not file.is_file():
        _, documents = open_documents(str(folder / "corpus.txt"), DataSettings(), "train")
        sample = [next(documents) for _ in range(20_000)]
        make_tokenizer(sample, TokenizerSettings(kind="byte-bpe", vocab_size=VOCABULARY)).save(
            folder
        )
    tokenizer = Tokenizer.load(file)

    def encode(texts: Sequence[str]) -> tuple[Any, Any, int]:
        ids = tokenizer.encode(texts)
        lengths = np.array([len(one) for one in ids], np.int64)
        flat = np.fromiter((token for one in ids for token in one), np.int32, int(lengths.sum()))
        return flat, lengths, sum(len(text.encode()) for text in texts)

    return Encoder(encode, tokenizer.encoding_digest, tokenizer.vocab_size)


def open_cache(folder: Path, kind: str) -> TokenCache:
    settings = DataSettings(cache=str(folder / "cache"))
    report = partial(print, file=sys.stderr, flush=True)
    return open_tokens(
        str(folder / "corpus.txt"), settings, make_encoder(folder, kind), report=report
    )


def build(folder: Path, kind: str) -> dict[str, Any]:
    start = time.perf_counter()
    cache = open_cache(folder, kind)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": len(cache.ids),
        "documents": len(cache),
        "GB": len(cache.ids) * cache.ids.dtype.itemsize / 1e9,
    }


def open_again(folder: Path, kind: str) -> dict[str, Any]:
    encoder = make_encoder(folder, kind)
    settings = DataSettings(cache=str(folder / "cache"))
    start = time.perf_counter()
    cache = open_tokens(str(folder / "corpus.txt"), settings, encoder)
    first = cache.document(len(cache) // 2)
    return {"seconds": time.perf_counter() - start, "tokens in the middle document": len(first)}


def read(folder: Path, kind: str, rows: int = 20_000) -> dict[str, Any]:
    """Read rows of an epoch in random order, and compare some documents with their tokens."""
    encoder, cache = make_encoder(folder, kind), open_cache(folder, kind)
    blocks = Blocks(cache.starts, WIDTH, shift=5)
    plan = ShuffledRows(len(blocks), 16, seed=1, epoch=0)
    start, tokens = time.perf_counter(), 0
    for batch in plan[: rows // 16]:
        starts, lengths = blocks.select(batch)
        tokens += len(cache.ids[positions(starts, lengths)])
    seconds = time.perf_counter() - start
    _, documents = open_documents(str(folder / "corpus.txt"), DataSettings(), "train")
    for number in range(1000):
        assert np.array_equal(cache.document(number), encoder.encode([next(documents)])[0])
    return {
        "rows": rows,
        "tokens per second": tokens / seconds,
        "ms per batch of 16 rows": 1000 * seconds / (rows // 16),
    }


def count(folder: Path, kind: str) -> dict[str, Any]:
    """Read one epoch with two ranks for the first half and three for the rest; every id must be
    read once.
    """
    cache = open_cache(folder, kind)
    blocks = Blocks(cache.starts, WIDTH, shift=5)
    plan = ShuffledRows(len(blocks), 64, seed=1, epoch=0)
    began = time.perf_counter()
    steps = len(plan) // 4
    read, expected = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for number in range(len(plan)):
        ranks, batch = 2 if number < 2 * steps else 3, plan[number]
        for rank in range(ranks):
            share = deal_batch(
                blocks.lengths, batch, number, accumulate=ranks, rank=rank, world=ranks
            )
            rows = np.concatenate([batch[:0], *share.parts])
            starts, lengths = blocks.select(rows)
            read += np.bincount(cache.ids[positions(starts, lengths)], minlength=1 << 16)
    for start in range(0, len(cache.ids), 1 << 22):
        expected += np.bincount(cache.ids[start : start + (1 << 22)], minlength=1 << 16)
    assert np.array_equal(read, expected), "an id was lost or read twice"
    return {
        "tokens": int(read.sum()),
        "ids": int((read > 0).sum()),
        "seconds": time.perf_counter() - began,
    }


STEPS = {"build": build, "open": open_again, "read": read, "count": count}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1.0, help="GB of text")
    parser.add_argument("--folder", type=Path, default=Path("big-corpus"))
    parser.add_argument("--tokenizer", choices=["byte-bpe", "bytes"], default="byte-bpe")
    parser.add_argument(
        "--count", action="store_true", help="also read a whole epoch and count every id"
    )
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        before = peak_memory()
        found = STEPS[options.step](options.folder, options.tokenizer)
        print(json.dumps(found | {"memory growth in MB": peak_memory() - before}))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    print("write", format_values(write_text(options.folder, options.size)), flush=True)
    for step in STEPS:
        if step == "count" and not options.count:
            continue
        command = [sys.executable, __file__, "--step", step, "--folder", str(options.folder)]
        done = subprocess.run(
            [*command, "--tokenizer", options.tokenizer],
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{step}: failed")
        print(step, format_values(json.loads(done.stdout)), flush=True)


def format_values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{name} {value:,.0f}"
        for name, value in values.items()
    )


if __name__ == "__main__":
    main()
