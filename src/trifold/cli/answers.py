"""Many texts through a model: in portions, in order, blank ones passed over, with a word on progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trifold.cli.streams import note
from trifold.errors import DataError

if TYPE_CHECKING:
    from trifold.generate import Hypothesis
    from trifold.pipeline import Pipeline

PORTION = (
    2048  # texts read before they are sorted by length and translated: more would only delay the first answer
)
QUIET = 5.0  # seconds between two words on progress


class Answer(NamedTuple):
    """One output for one text. limit: who cut it off, where it did not end by itself (see `generate.limits`)."""

    text: str
    score: float
    finish_reason: str
    limit: str | None


def opened(
    model: str,
    device: str | None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    weights: Literal["int8"] | None = None,
) -> Pipeline:
    """The model, on the device that is named or the best one here. Raises UsageError where that is not here."""
    from trifold.pipeline import load
    from trifold.train.device import find_device

    place = None if device in (None, "auto") else str(find_device(device))
    return load(model, device=place, dtype=dtype, weights=weights)


def answers(
    pipeline: Pipeline, texts: Iterable[str], asked: dict[str, Any], portion: int | None = None
) -> Iterator[tuple[str, list[Answer]]]:
    """Each text with its outputs, best first; a text without a token has none.

    `asked` are generation settings. Blank texts are counted, and progress said, on standard error. Raises DataError
    with the line of a text that is too long for the model.
    """
    stream, progress, cuts = iter(texts), Progress(), Cuts(pipeline)
    read = blank = 0
    while batch := list(islice(stream, portion or PORTION)):
        full = [place for place, ids in enumerate(pipeline.reader.encode(batch)) if ids]
        texts = [batch[place] for place in full]
        lengths = zip(full, map(len, pipeline.read(texts)), strict=True)
        _refuse_long(lengths, pipeline.config.max_positions, read)
        found = dict(zip(full, outputs(pipeline, texts, asked, progress, read), strict=True))
        cuts.count(answer for each in found.values() for answer in each)
        yield from ((text, found.get(place, [])) for place, text in enumerate(batch))
        read, blank = read + len(batch), blank + len(batch) - len(full)
    if blank:
        note(f"{blank:,} of {read:,} lines are blank: their output is blank too")
    cuts.say()


class Cuts:
    """Counts outputs that were cut off though nobody had asked for that, and says so."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._fates = {
            "positions": f"where the model has no more positions (max_positions, {pipeline.config.max_positions:,})",
            "default": "at the length that is usual where none is asked for: max_new_tokens says how far to go",
        }
        self._outputs, self._cut = 0, Counter[str]()

    def count(self, answers: Iterable[Answer]) -> None:
        """So many more outputs."""
        for answer in answers:
            self._outputs += 1
            if answer.limit in self._fates:
                self._cut[answer.limit] += 1

    def say(self) -> None:
        """A line for each way of being cut off that befell any."""
        for limit, count in self._cut.items():
            of = f"{count:,} of {self._outputs:,} outputs" if self._outputs > 1 else "the output"
            note(
                f"{of} did not end, and {'was' if self._outputs == 1 else 'were'} cut off {self._fates[limit]}"
            )


class Progress:
    """Says now and then how many texts are done; nothing where all is done soon."""

    def __init__(self) -> None:
        self.done = 0
        self._start = self._said = time.monotonic()

    def __call__(self, finished: int) -> None:
        """So many more texts are done."""
        self.done += finished
        now = time.monotonic()
        if now - self._said >= QUIET:
            note(f"{self.done:,} texts done, {self.done / (now - self._start):,.1f} a second")
            self._said = now


def outputs(
    pipeline: Pipeline,
    texts: list[str],
    asked: dict[str, Any],
    progress: Progress | None = None,
    first: int = 0,
) -> list[list[Answer]]:
    """The outputs for each text, best first; `first` is the place of the first one in all of them.

    Raises DataError for a text without a token.
    """
    if not texts:
        return []
    found = pipeline.hypotheses(texts, first=first, on_done=progress, **asked)
    decoded = iter(pipeline.decode([one.tokens for each in found for one in each], **asked))
    return [
        [answer_of(pipeline, text, next(decoded), one, asked) for one in each]
        for text, each in zip(texts, found, strict=True)
    ]


def answer_of(pipeline: Pipeline, text: str, said: str, output: Hypothesis, asked: dict[str, Any]) -> Answer:
    """An output for a text, with who cut it off."""
    limit = pipeline.limit(text, **asked).source if output.finish_reason == "length" else None
    return Answer(said, output.score, output.finish_reason, limit)


def _refuse_long(lengths: Iterable[tuple[int, int]], limit: int, before: int) -> None:
    """Naming the line, of (place, tokens); the model itself would name a row of some batch."""
    for place, length in lengths:
        if length > limit:
            raise DataError(
                f"line {before + place + 1}: {length:,} tokens, and the model reads at most {limit:,}; split the line"
            )
