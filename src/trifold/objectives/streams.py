"""Text that lies on the disk as tokens, as examples: rows of it are found when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.batches import BatchSettings, Blocks, ShuffledRows
from trifold.batches.plan import Plan
from trifold.data import Encoder, Side, TokenCache, open_tokens, sample_documents
from trifold.errors import SettingsError
from trifold.objectives.task import Asked
from trifold.ragged import Ragged
from trifold.text import Tokenizer

SAMPLE = 50_000_000  # characters that a tokenizer is trained on, from everywhere in a text that is larger than memory


@dataclass(frozen=True)
class Stream:
    """A corpus in rows of one width, documents one behind the other; none is kept, and none is planned before its time.

    Of each document every token but the last is read, and every one but the first is asked for.
    """

    ids: Any  # indexed like an array of integers
    blocks: Blocks

    @classmethod
    def of(cls, cache: TokenCache, width: int, draw: int | None = None) -> Stream:
        """With `draw`, rows begin at other places."""
        return cls(cache.ids, Blocks(cache.starts, width, shift=(draw or 0) % width, skip_last=1))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 1) the width for every row; the first and the last may be shorter."""
        return self.blocks.lengths

    @property
    def tokens(self) -> int:
        """Asked for in an epoch."""
        return self.blocks.tokens

    def chosen(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the pieces of the rows begin among the ids, and how many tokens each reads."""
        _, places, lengths = self.blocks.chunks(rows)
        return places, lengths

    def plan(self, settings: BatchSettings, *, seed: int, epoch: int) -> Plan:
        """As many rows a batch as it has room for, in an order drawn from seed and epoch."""
        size = max(1, settings.tokens // self.blocks.width)
        return ShuffledRows(len(self.blocks), min(size, settings.rows or size), seed=seed, epoch=epoch)


def cached(
    asked: Asked,
    source: str | list[str],
    tokenizer: Tokenizer,
    key: str,
    read: Callable[[Sequence[str]], Any],
    side: Side,
) -> TokenCache:
    """The cache of a source, made where it is not there.

    read: texts to a `.tokens` of every text and the `.bytes` of all. key: what decides what comes of that, beside the
    tokenizer.
    """

    def encode(texts: Sequence[str]) -> tuple[NDArray[np.integer], NDArray[np.int64], int]:
        corpus = read(texts)
        return corpus.tokens.ids, corpus.tokens.lengths, corpus.bytes

    encoder = Encoder(encode, f"{key} {tokenizer.reading}", tokenizer.vocab_size)
    cache = open_tokens(source, asked.data, encoder, side=side, seed=asked.seed, say=asked.say)
    asked.say(f"{cache.report}, {len(cache.ids):,} tokens in {cache.folder}")
    if cache.empty:
        asked.say(f"{cache.report.name}: {cache.empty:,} documents without a token: left out")
    return cache


def in_memory(cache: TokenCache) -> Ragged:
    """All of a cache that is small."""
    return Ragged(cache.ids[:].astype(np.int32), cache.starts[:])


def sample(asked: Asked, side: Side) -> list[str]:
    """Documents from all over the training text, for a tokenizer."""
    assert asked.data.train is not None
    texts = sample_documents(asked.data.train, asked.data, SAMPLE, side=side, seed=asked.seed)
    asked.say(f"tokenizer: trained on {sum(map(len, texts)):,} characters of {len(texts):,} documents")
    return texts


def refuse_cache(asked: Asked, kind: str) -> None:
    """Raises SettingsError where a recipe wants a cache that its task would not read."""
    if asked.data.cache is not None:
        raise SettingsError(
            f"data.cache: a task of kind {kind} reads its text into memory; leave data.cache out"
        )
