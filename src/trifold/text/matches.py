"""Which tokens of two texts stand in a word that the other text has, too.

A model that is trained on few pairs does not learn to compare their words (Chen et al. 2017,
"Reading Wikipedia to Answer Open-Domain Questions", which gives it an exact match as a feature).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trifold.scripts import STEM, unicode_words, word_spans
from trifold.text.encoded import Encoded

# Of a token: its word has nothing in the other text; its first letters; the word itself.
NONE, SAME_STEM, SAME_WORD = range(3)


def mark_matches(
    rows: Sequence[Encoded], firsts: Sequence[str], seconds: Sequence[str]
) -> list[Encoded]:
    """The rows of pairs of texts with the match of each token."""
    texts = zip(rows, firsts, seconds, strict=True)
    return [mark_windows([row], first, second)[0] for row, first, second in texts]


def mark_windows(rows: Sequence[Encoded], first: str, second: str) -> list[Encoded]:
    """The same of several rows with parts of one pair of texts, which are compared as a whole."""
    of_texts = (_of_characters(first, second), _of_characters(second, first))
    marked = []
    for row in rows:
        matches = [NONE] * len(row.ids)
        for token, (text, (start, end)) in enumerate(zip(row.texts, row.offsets, strict=True)):
            if text is not None:
                matches[token] = max(of_texts[text][start:end], default=NONE)
        marked.append(replace(row, matches=matches))
    return marked


def _of_characters(text: str, other: str) -> bytearray:
    """The match of the word of each character of a text; NONE between words."""
    words = {*unicode_words(other)}
    stems = {word[:STEM] for word in words}
    matches = bytearray(len(text))
    for word, start, end in word_spans(text):
        value = NONE
        if word in words:
            value = SAME_WORD
        elif word[:STEM] in stems:
            value = SAME_STEM
        matches[start:end] = bytes([value]) * (end - start)
    return matches
