"""Exact match and F1 of answers, equal to the scripts of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016,
2018).

In a script without spaces, a word is a character, and the punctuation is that of Unicode, as in
MLQA (Lewis et al. 2020).
"""

import re
import string
from collections.abc import Sequence
from typing import Literal

import numpy as np

from trifold.errors import DataError
from trifold.scores.counts import as_texts, check_lengths, overlap_f1, words_note
from trifold.scripts import has_spaces, main_script, unicode_words

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """The answer in lower case without ASCII punctuation and English articles, its words separated
    by one space.
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION)).split())


def _normalize_characters(answer: str) -> str:
    """The characters of an answer in a script without spaces, separated by one space."""
    return " ".join(unicode_words(answer))


def score_answer(
    references: str | Sequence[str], prediction: str, version: Literal["1.1", "2.0"] = "2.0"
) -> tuple[float, float]:
    """Exact match and F1 of words, 0 to 1: each the best over the references.

    Version 2.0: a question without a reference expects the empty text, and the F1 of two empty
    texts is 1. Version 1.1 raises DataError for such a question, and the F1 of two empty texts is
    0.
    """
    texts = as_texts(references)
    clean = normalize if has_spaces(main_script(texts)) else _normalize_characters
    expected = [clean(text) for text in texts]
    found = clean(prediction)
    if version == "2.0":
        expected = [text for text in expected if text] or [""]
    elif not expected:
        raise DataError('a question has no answer; version="2.0" scores such questions')
    exact = float(found in expected)
    if version == "2.0" and not found:
        return exact, exact
    return exact, max(overlap_f1(text.split(), found.split()) for text in expected)


class SquadScore:
    """Exact match and F1 of answers to questions; separate ones if some questions have no
    answer.
    """

    def __init__(self, version: Literal["1.1", "2.0"] = "2.0") -> None:
        self.version = version
        self.sums = np.zeros((2, 3))  # without and with an answer: exact match, F1, questions
        self.characters = 0  # questions whose answers are compared by characters

    @property
    def signature(self) -> str:
        words = words_note("characters", self.characters, int(self.sums[:, 2].sum()))
        return f"squad:{self.version}|references:best{words}"

    def add(self, references: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> None:
        """Add answers. A question whose references are all empty has no answer."""
        check_lengths(references, predictions, "questions")
        for expected, answer in zip(references, predictions, strict=True):
            self.characters += not has_spaces(main_script(as_texts(expected)))
            exact, f1 = score_answer(expected, answer, self.version)
            self.sums[int(any(as_texts(expected)))] += (exact, f1, 1)

    def values(self) -> dict[str, float]:
        """exact_match and f1 in percent; if some questions have no answer, also answerable_… and
        no_answer_…
        """
        groups = {"": self.sums.sum(0)}
        if self.sums[0, 2]:
            groups |= {"answerable_": self.sums[1], "no_answer_": self.sums[0]}
        return {
            f"{group}{name}": 100 * float(sums[place] / max(sums[2], 1))
            for group, sums in groups.items()
            for place, name in enumerate(("exact_match", "f1"))
        }
