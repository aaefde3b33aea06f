"""Hashed n-grams are those of `ngrams`, in buckets; a text has the same ones in any batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from trifold.linear.hashed import hashed_ngrams
from trifold.linear.ngrams import character_ngrams, word_ngrams

FACTOR = 0x9E3779B97F4A7C15
FIRST_OF_PAIR = 0xD6E8FEB86659FD93
TEXTS = [
    "A good film, a GOOD film",
    "",
    "x",
    "Straße naïve it's 3.5",
    "一部好电影 很好",
    "หนังดีมาก",
    "  spaces\tand\nlines  ",
    "\ud800 lone",
    "a" * 70,
]


def mixed(number: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ (number >> shift)) * factor % 2**64
    return number ^ (number >> 31)


def polynomial(text: str) -> int:
    return sum((ord(c) + 1) * FACTOR**i for i, c in enumerate(text)) % 2**64


def word_hash(name: str) -> int:
    first, _, second = name.partition(" ")
    if not second:
        return mixed(polynomial(first))
    return mixed((word_hash(first) * FIRST_OF_PAIR + word_hash(second)) % 2**64)


def character_hash(name: str) -> int:
    return mixed((polynomial(name) + len(name)) % 2**64)


@pytest.mark.parametrize(("words", "characters"), [(997, 2048), (64, 0), (0, 65536)])
def test_buckets_count_the_ngrams(words, characters):
    found = hashed_ngrams(TEXTS, words, characters)
    blocks = [
        (word_ngrams, word_hash, 0, words),
        (character_ngrams, character_hash, words, characters),
    ]
    blocks = [block for block in blocks if block[3]]
    for number, (analyzer, hashed, first, size) in enumerate(blocks):
        terms = analyzer(TEXTS)
        expected = [Counter[int]() for _ in TEXTS]
        for row, id_ in zip(terms.rows.tolist(), terms.ids.tolist(), strict=True):
            expected[row][first + hashed(terms.names[id_]) % size] += 1
        for row, counts in enumerate(expected):
            start, end = found.starts[row * len(blocks) + number :][:2]
            ours = dict(zip(found.ids[start:end].tolist(), found.values[start:end], strict=True))
            assert ours == counts, (number, TEXTS[row])


def test_a_text_has_the_same_features_in_any_batch():
    together = hashed_ngrams(TEXTS, 512, 1024)
    for row, text in enumerate(TEXTS):
        alone = hashed_ngrams([text], 512, 1024)
        starts = together.starts[2 * row : 2 * row + 3]
        assert (starts - starts[0]).tolist() == alone.starts.tolist()
        part = slice(starts[0], starts[-1])
        assert np.array_equal(together.ids[part], alone.ids)
        assert np.array_equal(together.values[part], alone.values)
    none = hashed_ngrams([], 512, 1024)
    assert len(none.ids) == 0 and none.starts.tolist() == [0]
