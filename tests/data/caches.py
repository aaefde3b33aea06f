"""Corpora of random words, and token caches of them with the bytes as tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trifold.data import DataSettings, Encoder, TokenCache, open_tokens


def encode(texts: Sequence[str]) -> tuple[Any, Any, int]:
    """The bytes of every document, followed by 256."""
    raw = [text.encode() for text in texts]
    ids = [np.append(np.frombuffer(one, np.uint8), np.uint16(256)) for one in raw]
    lengths = np.array([len(one) for one in ids], np.int64)
    return np.concatenate(ids), lengths, sum(map(len, raw))


BYTES = Encoder(encode, "bytes", 257)


def write_corpus(folder: Path, lines: int = 2000, seed: int = 0) -> Path:
    rng = random.Random(seed)
    words = [f"wörd{n}" for n in range(99)]
    texts = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(lines)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return path


def settings_of(folder: Path, **more: Any) -> DataSettings:
    return DataSettings(cache=str(folder / "cache"), **more)


def texts_of(cache: TokenCache) -> list[str]:
    return [bytes(cache.document(n)[:-1].astype(np.uint8)).decode() for n in range(len(cache))]


def open_cache(path: Path, folder: Path, **more: Any) -> TokenCache:
    options = {
        key: more.pop(key)
        for key in ("side", "seed", "report", "workers", "part_bytes")
        if key in more
    }
    return open_tokens(
        str(path), settings_of(folder, **more), BYTES, **({"part_bytes": 20_000} | options)
    )


def contents(cache: TokenCache) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.folder.iterdir()}


def encode_slowly(texts: Sequence[str]) -> tuple[Any, Any, int]:
    time.sleep(0.02)
    return encode(texts)
