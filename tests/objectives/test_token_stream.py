"""Token streams: a language model reads the same tokens from a cache as from memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trifold.batches import BatchSettings
from trifold.data import DataSettings, Encoder, TokenCache, open_tokens
from trifold.objectives.causal import Causal, CausalSettings, TokenStream
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer

TEXTS = [f"{'sun rain snow '[: n % 14]}{n} times" for n in range(200)] + ["fog " * 300]


def reader() -> Tokenizer:
    return make_tokenizer(TEXTS, TokenizerSettings(kind="char", vocab_size=40))


def make_objective(begin: bool = True, end: bool = True) -> Causal:
    return Causal(CausalSettings(begin=begin, end=end), reader(), 16)


def cache_of(objective: Causal, folder: Path) -> TokenCache:
    def encode(texts):
        corpus = objective.encode(texts)
        return corpus.tokens.ids, corpus.tokens.lengths, corpus.bytes

    path = folder / "text.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    settings = DataSettings(cache=str(folder / "cache"))
    return open_tokens(
        str(path), settings, Encoder(encode, "key", objective.tokenizer.vocab_size), part_bytes=1000
    )


def asked_for(objective: Causal, examples, plan) -> Counter[tuple[int, int]]:
    """Counts of (input token, label)."""
    found: Counter[tuple[int, int]] = Counter()
    for rows in plan:
        batch = objective.batch(examples, rows)
        assert int((batch.labels >= 0).sum()) == batch.tokens
        read = batch.inputs.tokens[0, : batch.tokens].tolist()
        found.update(zip(read, batch.labels[: batch.tokens].tolist(), strict=True))
    return found


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("draw", [None, 7, 2**64 - 1])
def test_labels_equal_those_from_memory(tmp_path, begin, draw):
    objective = make_objective(begin, end=begin)
    cache, corpus = cache_of(objective, tmp_path), objective.encode(TEXTS)
    assert cache.bytes == corpus.bytes
    pieces, stream = objective.examples(corpus), objective.examples(cache, draw)
    assert isinstance(stream, TokenStream)
    plan = stream.plan(BatchSettings(tokens=64), seed=1, epoch=0)
    expected = asked_for(objective, pieces, [np.arange(len(pieces.lengths))])
    assert asked_for(objective, stream, plan) == expected
    assert stream.tokens == sum(expected.values())


def test_batches_have_the_requested_size(tmp_path):
    objective = make_objective()
    stream = objective.examples(cache_of(objective, tmp_path))
    plan = stream.plan(BatchSettings(tokens=70), seed=1, epoch=0)
    sizes = [objective.batch(stream, rows).tokens for rows in plan]
    assert sorted(sizes)[2:] == [64] * (len(sizes) - 2)  # but for the last row and the last batch
    few = stream.plan(BatchSettings(tokens=70, rows=2), seed=1, epoch=0)
    assert {objective.batch(stream, rows).tokens for rows in few} >= {32}


def test_row_boundaries_depend_on_the_draw(tmp_path):
    objective = make_objective()
    cache = cache_of(objective, tmp_path)
    places = [
        tuple(objective.examples(cache, draw).select(np.array([5])).starts) for draw in (None, 1, 2)
    ]
    assert len(set(places)) == 3


def test_the_key_of_a_tokenizer_survives_saving_and_loading(tmp_path):
    """A resumed run must find its cache again."""
    for kind in ("byte-bpe", "bpe", "unigram", "word", "char"):
        tokenizer = make_tokenizer(TEXTS, TokenizerSettings(kind=kind, vocab_size=300))
        for begin in (True, False):
            folder = tmp_path / f"{kind}-{begin}"
            folder.mkdir()
            tokenizer.save(folder, prepend_bos=begin)
            assert Tokenizer.load(folder).encoding_digest == tokenizer.encoding_digest
            assert (
                Tokenizer.load(folder, dropout=0.1 if "bpe" in kind else 0.0).encoding_digest
                == tokenizer.encoding_digest
            )
    assert (
        reader().encoding_digest
        != make_tokenizer(TEXTS, TokenizerSettings(kind="word", vocab_size=40)).encoding_digest
    )
