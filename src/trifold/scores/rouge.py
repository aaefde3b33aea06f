"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), equal to rouge-score: F1 of word n-grams and common
subsequences.

rouge-score knows ASCII letters only. References of another script than Latin have Unicode words.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from trifold.errors import DataError
from trifold.scores.counts import as_texts, check_lengths, f1, overlap_f1, words_note
from trifold.scripts import main_script, unicode_words


def tokenize(text: str) -> list[str]:
    """Lower-case words of ASCII letters and digits; all other characters separate words."""
    return re.findall(r"[a-z0-9]+", text.lower())


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence (bit-parallel: Hyyrö 2004)."""
    places: defaultdict[str, int] = defaultdict(int)
    for place, word in enumerate(first):
        places[word] |= 1 << place
    # Bit i of `row` is 0 if the first i + 1 words have a longer common subsequence with `second`
    # than the first i.
    every = row = (1 << len(first)) - 1
    for word in second:
        matches = row & places[word]
        row = (row + matches | row - matches) & every
    return len(first) - row.bit_count()


class RougeScore:
    """Mean F1 over examples; of several references, the best for each score. Words are not
    stemmed. by_example: the F1 of each example. unicode: the number of examples with
    Unicode words.
    """

    def __init__(self) -> None:
        self.by_example: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougeL": []}
        self.unicode = 0

    @property
    def signature(self) -> str:
        words = words_note("unicode", self.unicode, len(self.by_example["rouge1"]))
        return f"measure:f1|stemming:no|references:best{words}"

    def add(self, references: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> None:
        """Add texts. Raises DataError for an example without a reference."""
        check_lengths(references, predictions)
        for texts, prediction in zip(references, predictions, strict=True):
            is_latin = main_script(as_texts(texts)) == "latin"
            split = tokenize if is_latin else unicode_words
            self.unicode += not is_latin
            predicted = split(prediction)
            expected = [split(text) for text in as_texts(texts)]
            if not expected:
                raise DataError(f"ROUGE: the prediction {prediction!r:.40} has no reference")
            longest = [(common_subsequence(words, predicted), len(words)) for words in expected]
            best = {
                "rouge1": max(overlap_f1(words, predicted) for words in expected),
                "rouge2": max(
                    overlap_f1(pairwise(words), pairwise(predicted)) for words in expected
                ),
                "rougeL": max(f1(common, size, len(predicted)) for common, size in longest),
            }
            for name, value in best.items():
                self.by_example[name].append(value)

    @property
    def percentages(self) -> dict[str, list[float]]:
        """The F1 of each example in percent."""
        return {name: [100 * x for x in of] for name, of in self.by_example.items()}

    def values(self) -> dict[str, float]:
        """rouge1, rouge2 and rougeL, in percent."""
        return {name: 100 * sum(of) / max(len(of), 1) for name, of in self.by_example.items()}
