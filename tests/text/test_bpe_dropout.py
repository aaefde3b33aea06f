"""BPE-dropout is reproducible, exact at rate 0, and has the distribution of the paper."""

from __future__ import annotations

from collections import Counter

import pytest
from tokenizers import Tokenizer as Library, models

from trifold.text import Tokenizer, TokenizerSettings, train_tokenizer
from trifold.text.bpe_dropout import BPEDropout

CORPUS = [
    "Zwei junge weiße Männer sind im Freien, in der Nähe vieler Büsche.",
    "Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz ☃.",
] * 30


def trained(kind: str, dropout: float) -> Tokenizer:
    settings = {"kind": kind, "vocab_size": 350, "dropout": dropout}
    return train_tokenizer(CORPUS[:60], TokenizerSettings.parse(settings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_without_dropout_the_merges_equal_the_library(kind: str) -> None:
    tokenizer = trained(kind, 1e-12)  # too small to happen, but not zero: our own loop runs
    assert tokenizer.sample(CORPUS, seed=3) == tokenizer.encode(CORPUS)
    assert trained(kind, 0.0).sample(CORPUS, seed=3) == tokenizer.encode(CORPUS)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_dropout_keeps_the_text_and_shortens_pieces(kind: str) -> None:
    tokenizer = trained(kind, 0.1)
    usual, sampled = tokenizer.encode(CORPUS), tokenizer.sample(CORPUS, seed=0)
    assert tokenizer.decode(sampled) == tokenizer.decode(usual)
    unknown = tokenizer.unk_id
    assert [row.count(unknown) for row in sampled] == [row.count(unknown) for row in usual]
    assert sum(map(len, sampled)) > 1.1 * sum(map(len, usual))
    more = Tokenizer(tokenizer.library, dropout=0.5).sample(CORPUS, seed=0)
    assert sum(map(len, more)) > 1.3 * sum(map(len, sampled))


def test_sampling_is_a_function_of_text_seed_and_index() -> None:
    tokenizer = trained("bpe", 0.1)
    rows = tokenizer.sample(CORPUS, seed=5)
    assert tokenizer.sample(CORPUS, seed=5) == rows
    assert tokenizer.sample(CORPUS, seed=6) != rows
    order = [7, 0, 33, 33]
    assert tokenizer.sample([CORPUS[i] for i in order], seed=5, indices=order) == [
        rows[i] for i in order
    ]
    same_text = {tuple(rows[i]) for i in range(0, len(CORPUS), 3)}
    assert len(same_text) > 20
    assert trained("bpe", 0.1).sample(CORPUS, seed=5) == rows


@pytest.mark.slow
@pytest.mark.parametrize("p", [1e-300, 0.1, 0.5, 0.97])
def test_texts_that_were_seen_before_are_sampled_equally(p: float) -> None:
    library = trained("bpe", 0.1).library
    texts = [*CORPUS[:6], "", " ", "日本 Büsche ☃☃", CORPUS[0], "x" * 90]
    used = BPEDropout(library, 1, p)
    for seed in range(8):
        some = texts[seed % 3 :]  # words are met in another order
        indices = range(seed, seed + len(some))
        assert used.encode(some, seed, indices) == BPEDropout(library, 1, p).encode(
            some, seed, indices
        )
    assert used.encode([], 0, []) == []


def test_samples_do_not_change() -> None:
    merges = [("a", "b"), ("ab", "ab"), ("b", "a"), ("abab", "a")]
    vocabulary = {piece: at for at, piece in enumerate(["?", "a", "b", *map("".join, merges)])}
    sample = BPEDropout(Library(models.BPE(vocabulary, merges)), 0, 0.5).encode
    found = ["".join(map(str, *sample(["ababa" * 3 + "c"], seed, [7]))) for seed in range(4)]
    assert found == ["6660", "641410", "331331121210", "3153313310"]


def test_seeds_and_indices_are_independent() -> None:
    tokenizer = trained("bpe", 0.3)
    text = CORPUS[1]
    by_seed = [tokenizer.sample([text], seed=seed, indices=[0])[0] for seed in range(300)]
    by_index = tokenizer.sample([text] * 300, seed=0)
    assert len({tuple(row) for row in by_seed}) > 290
    assert len({tuple(row) for row in by_index}) > 290
    assert sum(one == other for one, other in zip(by_seed, by_index, strict=True)) < 5


def test_the_distribution_matches_the_paper() -> None:
    """For the merges (a,b) and (ab,c): both with (1-p)^2, only the first with (1-p)p, none with p."""
    p, draws = 0.3, 20_000
    tokenizer = train_tokenizer(
        ["abc ab abc ab abc"],
        TokenizerSettings(kind="bpe", vocab_size=11, min_frequency=1, dropout=p),
    )
    usual = tokenizer.encode(["abc"])[0]
    counts = Counter(len(row) for row in tokenizer.sample(["abc"] * draws, seed=1))
    merges = 4 - len(usual)  # ▁ a b c
    assert merges == 3
    # A chain of merges, each possible only after the one before: n of them occur with probability
    # (1-p)^n p.
    for count in range(merges + 1):
        expected = (1 - p) ** count * (p if count < merges else 1)
        deviation = (expected * (1 - expected) / draws) ** 0.5
        assert abs(counts[4 - count] / draws - expected) < 4 * deviation
