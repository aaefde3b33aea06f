"""Tokens on disk as examples: a corpus larger than memory, whose rows are computed when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.batches import Blocks
from trifold.data import Encoder, Side, TokenCache, open_tokens, sample_documents
from trifold.objectives.objective import BuildContext
from trifold.ragged import Ragged
from trifold.text import Tokenizer

SAMPLE = 50_000_000  # characters, from all over the text, that a tokenizer is trained on


@dataclass(frozen=True)
class TokenStream(Blocks):
    """A corpus in rows of equal width. All tokens of a document but its last are inputs, all but its first targets."""

    ids: Any = None  # indexed like an array of integers

    @classmethod
    def of(cls, cache: TokenCache, width: int, draw: int | None = None) -> TokenStream:
        """With `draw`, the row boundaries move."""
        return cls(cache.starts, width, shift=(draw or 0) % width, skip_last=1, ids=cache.ids)


def open_cache(
    context: BuildContext, tokenizer: Tokenizer, key: str, encode: Callable[[Sequence[str]], Any], side: Side
) -> TokenCache:
    """The token cache of the training text, created if it does not exist.

    encode: texts -> their `tokens`, and the number of `bytes` of the target tokens. key: identifies, together with the
    tokenizer, the result of `encode`.
    """

    def encode_arrays(texts: Sequence[str]) -> tuple[NDArray[np.integer], NDArray[np.int64], int]:
        corpus = encode(texts)
        return corpus.tokens.ids, corpus.tokens.lengths, corpus.bytes

    source = context.data.train
    assert source is not None
    encoder = Encoder(encode_arrays, f"{key} {tokenizer.encoding_digest}", tokenizer.vocab_size)
    cache = open_tokens(source, context.data, encoder, side=side, seed=context.seed, report=context.report)
    context.report(f"{cache.report}, {len(cache.ids):,} tokens in {cache.folder}")
    if cache.empty:
        context.report(f"{cache.report.name}: {cache.empty:,} documents without a token: left out")
    return cache


def load_into_memory(cache: TokenCache) -> Ragged:
    """All tokens of a small cache."""
    return Ragged(cache.ids[:].astype(np.int32), cache.starts[:])


def sample_text(context: BuildContext, side: Side) -> list[str]:
    """Documents from all over the training text, to train a tokenizer."""
    assert context.data.train is not None
    texts = sample_documents(context.data.train, context.data, SAMPLE, side=side, seed=context.seed)
    context.report(f"tokenizer: trained on {sum(map(len, texts)):,} characters of {len(texts):,} documents")
    return texts
