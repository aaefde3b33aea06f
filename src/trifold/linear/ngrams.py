"""n-grams of texts: of words, and of characters within words, as scikit-learn counts them.

A word has two or more letters, digits or underscores; in a script without spaces, each character
is one.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.scripts import UNSPACED

Ids: TypeAlias = NDArray[np.int64]

_WORD = re.compile(r"\b\w\w+\b")
_UNSPACED_OR_WORD = re.compile(rf"{UNSPACED.pattern}|[^\W{UNSPACED.pattern[1:-1]}]{{2,}}")


class Terms(NamedTuple):
    """The n-grams of a number of texts: occurrence i is `names[ids[i]]` in text `rows[i]`."""

    names: list[str]
    ids: Ids
    rows: Ids
    texts: int


Analyzer: TypeAlias = Callable[[Sequence[Any]], Terms]  # of texts, or of words in sentences


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    text = text.lower()
    if text.isascii() or not UNSPACED.search(text):
        return _WORD.findall(text)
    return _UNSPACED_OR_WORD.findall(text)


def word_ngrams(texts: Sequence[str]) -> Terms:
    """Words, and pairs of adjacent words."""
    names, ids, starts = numbered(map(words_of, texts))
    rows = np.repeat(np.arange(len(texts)), np.diff(starts))
    is_adjacent = rows[1:] == rows[:-1]
    # A pair of words is one number, so that pairs are counted without text.
    keys = (ids[:-1] * len(names) + ids[1:])[is_adjacent]
    pairs, numbers = np.unique(keys, return_inverse=True)
    firsts, seconds = np.divmod(pairs, max(len(names), 1))
    pair_names = [
        f"{names[first]} {names[second]}"
        for first, second in zip(firsts.tolist(), seconds.tolist(), strict=True)
    ]
    return Terms(
        names + pair_names,
        np.concatenate([ids, len(names) + numbers]),
        np.concatenate([rows, rows[:-1][is_adjacent]]),
        len(texts),
    )


def character_ngrams(texts: Sequence[str], shortest: int = 2, longest: int = 5) -> Terms:
    """Characters of each word, with a space on either side; words are what white space
    separates.
    """
    words, ids, starts = numbered(text.lower().split() for text in texts)
    names, pieces, piece_starts = numbered(
        _pieces(f" {word} ", shortest, longest) for word in words
    )
    counts = np.diff(piece_starts)[ids]  # of the n-grams of each word in the texts
    rows = np.repeat(np.arange(len(texts)), np.diff(starts))
    ends = np.cumsum(counts)
    offsets = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    return Terms(
        names,
        pieces[np.repeat(piece_starts[:-1][ids], counts) + offsets],
        np.repeat(rows, counts),
        len(texts),
    )


def _pieces(word: str, shortest: int, longest: int) -> list[str]:
    """The n-grams of a word; one that is shorter than `n` counts once, as a whole."""
    pieces = []
    for length in range(shortest, longest + 1):
        pieces += [word[start : start + length] for start in range(max(1, len(word) - length + 1))]
        if length >= len(word):
            break
    return pieces


def numbered(sequences: Iterable[Sequence[str]]) -> tuple[list[str], Ids, Ids]:
    """The distinct names in sequences, the number of each name in turn, and where each sequence
    starts.
    """
    kept = list(sequences)
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(name, len(numbers)) for name in chain.from_iterable(kept)]
    starts = np.cumsum([0, *map(len, kept)])
    return list(numbers), np.array(ids, np.int64), starts
