"""`trifold predict --word`: the vectors of one word in several sentences, compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from trifold.cli.arrays_output import cosines
from trifold.cli.batch import one_line
from trifold.cli.tables import Input
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import DataError, UsageError, escape, plural
from trifold.predict.features import WordVector, word_vectors

MOST = 8  # columns of cosines that fit beside the text
CONTEXT = 16  # characters before and after the word
MOST_VECTORS = 2_000  # whose cosines are printed as JSON


class Occurrence(NamedTuple):
    """A word in a text; number: that of the text, from 1."""

    number: int
    text: str
    place: WordVector

    @property
    def context(self) -> str:
        """The word with what stands around it."""
        first = max(0, self.place.start - CONTEXT)
        last = self.place.end + CONTEXT
        before = "…" if first else ""
        after = "…" if last < len(self.text) else ""
        return f"{before}{one_line(self.text[first:last])}{after}"


def print_word(
    word: str, layer: int, predictions: Iterable[tuple[Input, Any]], *, as_json: bool
) -> None:
    """Print the cosine of the vectors of a word wherever it stands. Raises DataError if it is
    nowhere, UsageError for a tokenizer without characters.
    """
    found = list[Occurrence]()
    has_spans = True
    for number, (item, features) in enumerate(predictions, start=1):
        if features is None:
            continue
        text = str(item.text)
        has_spans = any(span is not None for span in features.spans)
        found += [Occurrence(number, text, one) for one in word_vectors(features, text, word)]
        if len(found) > MOST_VECTORS:
            raise DataError(f"--word {word}: over {MOST_VECTORS:,} places; give fewer texts")
    if not has_spans:
        raise UsageError("--word: this tokenizer does not tell the characters of its tokens")
    if not found:
        raise DataError(f"--word {word}: in none of the texts; check its form")
    similarity = cosines([one.place.vector.numpy() for one in found])
    if as_json:
        places = [
            {"text": one.number, "start": one.place.start, "end": one.place.end} for one in found
        ]
        print_json(word=word, layer=layer, places=places, cosines=similarity.round(6).tolist())
        return
    shown = found[:MOST]
    print(f"cosines of the vectors of {escape(word)!r} after layer {layer}\n")
    numbers = [str(number) for number in range(1, len(shown) + 1)]
    rows = [
        (number, escape(one.context), *(f"{value:.3f}" for value in row[: len(shown)]))
        for number, one, row in zip(numbers, shown, similarity, strict=False)
    ]
    print_table([("", "text", *numbers), *rows], "r " + "r" * len(shown))
    if len(found) > MOST:
        print_note(f"{plural(len(found) - MOST, 'other place')} with --json")
