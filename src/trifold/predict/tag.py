"""Classes of the tokens of a text, and the spans of characters that they make.

prediction      logits of the token head -> a softmax a token -> one class a word -> neighbours of one class together

The ways of merging are those of the reference's token-classification pipeline, under its names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.predict.reading import Reading
from trifold.text import Encoded, Tokenizer

Merge = Literal["none", "simple", "first", "average", "max"]
Scores = NDArray[np.float32]


class Tag(NamedTuple):
    """A class, its probability, and the characters [start, end) of the text that it is said of."""

    label: str
    score: float
    text: str
    start: int
    end: int


class _Piece(NamedTuple):
    """A token, or the tokens of a word: scores (C,), its characters, and whether it goes on with the word before it."""

    scores: Scores
    start: int
    end: int
    continues: bool = False


def tag(
    reading: Reading, texts: Sequence[str], *, merge: Merge = "first", ignore: Sequence[str] = ("O",)
) -> list[list[Tag]]:
    """The tags of each text, in the order of the text, without those whose label is in `ignore`.

    merge: `none` gives every token by itself; `simple` puts neighbouring tokens of one class together (a class that
    begins with B- begins a span); `first`, `average` and `max` do that with whole words, whose class is that of their
    first token, of the mean of the tokens, or of the surest one. Raises UsageError where the tokenizer does not know
    where its tokens stand.
    """
    if merge not in ("none", "simple", *WORDS):
        raise UsageError(f"merge: {merge!r} is not known; known: none, simple, {', '.join(WORDS)}")
    tokenizer = reading.reader
    if not tokenizer.has_offsets:
        raise UsageError(
            "this tokenizer does not know where in a text its tokens stand: tags would have no place"
        )
    rows, labels = reading.rows(texts), reading.config.labels
    found = reading.through(rows, reading.head("token"))
    tagged = []
    for text, row, logits in zip(texts, rows, found, strict=True):
        pieces = _pieces(tokenizer, text, row, logits[: len(row.ids)].softmax(-1).numpy())
        pieces = _words(pieces, WORDS[merge]) if merge in WORDS else pieces
        tags = [_tag(piece, labels, text) for piece in pieces]
        tags = tags if merge == "none" else _spans(tags, text)
        tagged.append([tag for tag in tags if tag.label not in ignore])
    return tagged


def _pieces(tokenizer: Tokenizer, text: str, row: Encoded, scores: Scores) -> list[_Piece]:
    """The tokens of the text itself, without the special ones around it."""
    prefix = getattr(tokenizer.library.model, "continuing_subword_prefix", None)
    pieces = []
    for token, (start, end), own, one in zip(row.ids, row.offsets, row.texts, scores, strict=True):
        if own is None:
            continue
        if token == tokenizer.unk_id:
            continues = False
        elif prefix:  # a piece inside a word is longer than what it stands for
            continues = len(str(tokenizer.library.id_to_token(token))) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        pieces.append(_Piece(one, start, end, continues))
    return pieces


# --- words -----------------------------------------------------------------------------------------------

# How a word's scores (C,) come from those of its tokens (N, C).
WORDS: dict[str, Callable[[Scores], Scores]] = {
    "first": lambda scores: scores[0],
    "average": lambda scores: scores.mean(0),
    "max": lambda scores: scores[scores.max(1).argmax()],
}


def _words(pieces: Sequence[_Piece], join: Callable[[Scores], Scores]) -> list[_Piece]:
    words: list[list[_Piece]] = []
    for piece in pieces:
        if piece.continues and words:
            words[-1].append(piece)
        else:
            words.append([piece])
    return [_Piece(join(np.stack([p.scores for p in word])), word[0].start, word[-1].end) for word in words]


# --- spans -----------------------------------------------------------------------------------------------


def _tag(piece: _Piece, labels: Sequence[str], text: str) -> Tag:
    best = int(piece.scores.argmax())
    return Tag(labels[best], float(piece.scores[best]), text[piece.start : piece.end], piece.start, piece.end)


def _spans(tags: Sequence[Tag], text: str) -> list[Tag]:
    """Neighbours of one class as one tag, without the B- and I- of their labels; its score is their mean."""
    numbers, number, before = [], 0, None
    for tag in tags:
        number += before is not None and (tag.label.startswith("B-") or _kind(tag.label) != before)
        before = _kind(tag.label)
        numbers.append(number)
    together = [
        [tag for _, tag in group] for _, group in groupby(zip(numbers, tags, strict=True), key=lambda p: p[0])
    ]
    return [
        Tag(
            some[0].label.split("-", 1)[-1],
            float(np.mean([tag.score for tag in some])),
            text[some[0].start : some[-1].end],
            some[0].start,
            some[-1].end,
        )
        for some in together
    ]


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label
