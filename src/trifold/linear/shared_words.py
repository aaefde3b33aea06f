"""What two texts share, as counts from which `overlap` computes its numbers once the idf of words
is known: a model that learns the idf keeps it by buckets of hashed words, not by words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from trifold.linear.hashed import SparseRows, hashed_names
from trifold.linear.overlap import (
    ORDER_NAMES,
    cosine,
    have_other_numbers,
    jaccard,
    order_numbers,
    pieces_of,
    ratio,
)
from trifold.scripts import STEM, unicode_words

# The blocks of a pair: words of both texts, of each, and of one only; numbers without idf.
SHARED, FIRST, SECOND, UNSHARED, GIVEN = range(5)
BLOCKS = 5
# The places in `overlap.NAMES` of the numbers without idf.
WITHOUT_IDF = (0, 4, 6, 7, 8, 9, 11)


def counted_pairs(
    firsts: Sequence[str], seconds: Sequence[str], buckets: int, *, has_order: bool = False
) -> SparseRows:
    """The words of pairs of texts by bucket, and the numbers without idf.

    The value of a word is how often its text has it; of a shared one, the product of both.
    has_order: whether the numbers of order and lengths follow.
    """
    pairs = [*map(_of_pair, firsts, seconds)]
    columns = len(WITHOUT_IDF)
    if has_order:
        columns += len(ORDER_NAMES)
        for (_, given), first, second in zip(pairs, firsts, seconds, strict=True):
            given += order_numbers(first, second)
    words = [[*block] for blocks, _ in pairs for block in blocks]
    counts = [[*block.values()] for blocks, _ in pairs for block in blocks]
    ids = hashed_names([*chain.from_iterable(words)], buckets)
    sizes = np.array([len(block) for block in words], np.int64).reshape(-1, GIVEN)
    numbers = np.array([given for _, given in pairs], np.float32).reshape(-1, columns)
    of_numbers = np.full((len(sizes), 1), columns)
    starts = np.cumsum([0, *np.hstack([sizes, of_numbers]).ravel()])
    is_given = np.repeat(np.arange(len(starts) - 1) % BLOCKS == GIVEN, np.diff(starts))
    all_ids = np.zeros(starts[-1], np.int64)
    all_ids[~is_given] = ids
    values = np.empty(starts[-1], np.float32)
    values[~is_given] = np.fromiter(chain.from_iterable(counts), np.float32, len(ids))
    values[is_given] = numbers.ravel()
    return SparseRows(all_ids, values, starts)


def _of_pair(first: str, second: str) -> tuple[list[dict[str, int]], list[float]]:
    """The counts of each block of words, and the numbers without idf."""
    a, b = unicode_words(first), unicode_words(second)
    of_a, of_b = Counter(a), Counter(b)
    shared = {word: count * of_b[word] for word, count in of_a.items() if word in of_b}
    unshared = dict.fromkeys(of_a.keys() ^ of_b.keys(), 1)
    stems = [{word[:STEM] for word in words} for words in (a, b)]
    numbers = [
        jaccard(of_a, of_b),
        ratio(min(len(a), len(b)), max(len(a), len(b))),
        jaccard({*pairwise(a)}, {*pairwise(b)}),
        jaccard(*stems),
        cosine(pieces_of(a), pieces_of(b)),
        float(have_other_numbers(of_a, of_b)),
        math.log(1 + len(a) + len(b)),
    ]
    return [shared, of_a, of_b, unshared], numbers
