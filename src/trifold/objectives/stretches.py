"""Documents in stretches that a model can read at once. No token is lost, but where the recipe says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trifold.text.annotation import AnnotatedTexts
from trifold.text.spans import Flags, Ids, example_rng

Cut = Literal["pieces", "windows", "drop"]


@dataclass(frozen=True)
class Stretches:
    """Examples: `sizes[n]` tokens of the documents from `starts[n]` on, and `around` special ones beside them."""

    documents: AnnotatedTexts
    starts: Ids
    sizes: Ids
    around: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 1) tokens, special ones included."""
        return self.sizes[:, None] + self.around

    def __getitem__(self, row: int) -> tuple[Ids, Flags, Flags]:
        """Ids, and where words and sentences start."""
        start, documents = self.starts[row], self.documents
        part = slice(start, start + self.sizes[row])
        return (
            documents.ids[part].astype(np.int64),
            documents.word_starts[part],
            documents.sentence_starts[part],
        )


def stretches(
    documents: AnnotatedTexts, room: int, around: int, cut: Cut, draw: int | None = None
) -> Stretches:
    """Documents of at most `room` tokens as they are; longer ones in pieces of that length.

    With a draw, and where windows are asked for, the first piece of a longer document has a length drawn from it, so
    that the cuts fall at other places with each draw. Where the cut is "drop" longer ones are left out.
    """
    lengths = documents.lengths
    first = np.minimum(lengths, room)
    if cut == "windows" and draw is not None:
        drawn = example_rng(draw, 2**63).integers(1, room + 1, size=len(lengths))
        first = np.where(lengths > room, drawn, first)
    if cut == "drop":
        lengths = np.where(lengths > room, 0, lengths)
        first = np.minimum(lengths, first)
    count = (lengths > 0) - (first - lengths) // room  # the rest in pieces, rounded up
    document = np.repeat(np.arange(len(lengths)), count)
    number = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    begins = np.where(number == 0, 0, first[document] + (number - 1) * room)
    ends = np.minimum(first[document] + number * room, lengths[document])
    return Stretches(documents, documents.starts[document] + begins, ends - begins, around)
