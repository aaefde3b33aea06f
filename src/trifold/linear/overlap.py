"""What two texts share, as twelve numbers: words, pairs of words, stems, characters and numbers.

Words count by their idf in the training texts: a rare word that both texts have says more. Eight
more numbers, `order_numbers`, are of the order of the words and of the lengths of the texts.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trifold.scripts import STEM, unicode_words

NAMES = (
    "Jaccard index of words",
    "share of the idf of all words that is in shared ones",
    "share of the idf of the first text that is in shared words",
    "share of the idf of the second text that is in shared words",
    "length of the shorter text, as a share of the longer one",
    "cosine of TF-IDF",
    "Jaccard index of pairs of adjacent words",
    "Jaccard index of the first four letters of words",
    "cosine of the counts of 3 and 4 adjacent characters",
    "whether the numbers differ",
    "largest idf of a word that one text lacks",
    "logarithm of the number of words",
)
ORDER_NAMES = (
    "longest common subsequence of words, as a share of both texts",
    "longest common subsequence of words, as a share of the shorter text",
    "Jaccard index of three adjacent words",
    "cosine of the counts of 5 adjacent characters",
    "characters of the shorter text, as a share of the longer one",
    "logarithm of the ratio of characters, the second text by the first one",
    "its absolute value",
    "difference of the numbers of words",
)
PIECES = (3, 4)  # characters
LONG_PIECES = (5,)


@dataclass(frozen=True)
class Overlap:
    """The idf of the words of `texts` training texts, by word."""

    idf: dict[str, float]
    texts: int

    @classmethod
    def fit(cls, texts: Sequence[str]) -> "Overlap":
        """The idf of words: ln((1 + N) / (1 + df)) + 1."""
        frequencies = Counter[str]()
        for text in texts:
            frequencies.update({*unicode_words(text)})
        top = 1 + len(texts)
        return cls({word: math.log(top / (1 + n)) + 1 for word, n in frequencies.items()}, top - 1)

    @property
    def unknown(self) -> float:
        """The idf of a word that no training text has."""
        return math.log(1 + self.texts) + 1

    def weight(self, words: Iterable[str]) -> float:
        """The sum of the idf of words."""
        unknown = self.unknown
        return sum(self.idf.get(word, unknown) for word in words)

    def features(self, firsts: Sequence[str], seconds: Sequence[str]) -> NDArray[np.float64]:
        """(N, 12) the numbers of each pair of texts."""
        rows = [self._of_pair(*pair) for pair in zip(firsts, seconds, strict=True)]
        return np.array(rows, np.float64).reshape(-1, len(NAMES))

    def _of_pair(self, first: str, second: str) -> list[float]:
        a = unicode_words(first)
        b = unicode_words(second)
        words_a = {*a}
        words_b = {*b}
        shared = self.weight(words_a & words_b)
        return [
            jaccard(words_a, words_b),
            ratio(shared, self.weight(words_a | words_b)),
            ratio(shared, self.weight(words_a)),
            ratio(shared, self.weight(words_b)),
            ratio(min(len(a), len(b)), max(len(a), len(b))),
            self.cosine(a, b),
            jaccard({*pairwise(a)}, {*pairwise(b)}),
            jaccard({word[:STEM] for word in a}, {word[:STEM] for word in b}),
            cosine(pieces_of(a), pieces_of(b)),
            float(have_other_numbers(words_a, words_b)),
            max((self.idf.get(word, self.unknown) for word in words_a ^ words_b), default=0.0),
            math.log(1 + len(a) + len(b)),
        ]

    def cosine(self, first: Sequence[str], second: Sequence[str]) -> float:
        """The cosine of the TF-IDF of two texts, given by their words."""
        return cosine(self._weighted(first), self._weighted(second))

    def _weighted(self, words: Sequence[str]) -> dict[str, float]:
        unknown = self.unknown
        return {word: n * self.idf.get(word, unknown) for word, n in Counter(words).items()}


def jaccard(first: Collection[object], second: Collection[object]) -> float:
    """The size of the intersection of two sets, as a share of their union; 0 without elements."""
    shared = len({*first} & {*second})
    return ratio(shared, len(first) + len(second) - shared)


def cosine(first: dict[str, float], second: dict[str, float]) -> float:
    """The cosine of two vectors, given by the names of their elements; 0 for an empty one."""
    if len(second) < len(first):
        first, second = second, first
    product = sum(value * second.get(name, 0.0) for name, value in first.items())
    squares = [sum(value**2 for value in vector.values()) for vector in (first, second)]
    return ratio(product, math.sqrt(squares[0] * squares[1]))


def order_numbers(first: str, second: str) -> list[float]:
    """The numbers `ORDER_NAMES` of two texts."""
    a = unicode_words(first)
    b = unicode_words(second)
    common = common_subsequence(a, b)
    ratio_of_lengths = math.log((1 + len(second)) / (1 + len(first)))
    return [
        ratio(2 * common, len(a) + len(b)),
        ratio(common, min(len(a), len(b))),
        jaccard({*zip(a, a[1:], a[2:], strict=False)}, {*zip(b, b[1:], b[2:], strict=False)}),
        cosine(pieces_of(a, LONG_PIECES), pieces_of(b, LONG_PIECES)),
        ratio(min(len(first), len(second)), max(len(first), len(second))),
        ratio_of_lengths,
        abs(ratio_of_lengths),
        float(abs(len(a) - len(b))),
    ]


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence, by bits of whole numbers (Hyyrö 2004).

    Bit i of `open_places` is 0 where the length grows at place i of the first text: the length of
    the best subsequence so far is the number of such bits.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    all_places = (1 << len(first)) - 1
    open_places = all_places
    for word in second:
        matched = open_places & places.get(word, 0)
        open_places = (open_places + matched | open_places - matched) & all_places
    return len(first) - open_places.bit_count()


def pieces_of(words: Sequence[str], sizes: Sequence[int] = PIECES) -> dict[str, float]:
    """How often each piece of the text occurs. sizes: of the pieces, in characters."""
    text = " ".join(words)
    pieces = [text[at : at + size] for size in sizes for at in range(len(text) - size + 1)]
    return dict[str, float](Counter(pieces))


def have_other_numbers(first: Collection[str], second: Collection[str]) -> bool:
    """Whether the words with digits of two texts differ."""
    return _numbers(first) != _numbers(second)


def _numbers(words: Collection[str]) -> set[str]:
    return {word for word in words if any(map(str.isdecimal, word))}


def ratio(part: float, whole: float) -> float:
    """part / whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0
