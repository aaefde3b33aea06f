"""Batch inference of the commands: texts in batches and in order, with progress on standard
error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trifold.cli.overlap import OnDone, compute_ahead
from trifold.cli.progress import TextProgress
from trifold.cli.terminal import print_note
from trifold.errors import DataError, UsageError, check_utf8

if TYPE_CHECKING:
    from trifold.generate import Hypothesis
    from trifold.pipeline import Pipeline

BATCH = 2048  # texts read before they are sorted by length; more would delay the first output


class Output(NamedTuple):
    """One output for one text. limit: what cut it off (`generate.OutputLimit.source`), None if it
    ended by itself.
    """

    text: str
    score: float
    finish_reason: str
    limit: str | None


Item = TypeVar("Item")
Result = TypeVar("Result")


def reads_stdin(texts: Sequence[str]) -> bool:
    """Whether the texts are the lines of standard input: for `-`, or a pipe and no text.

    Raises UsageError for no text at a terminal, or one that is not UTF-8.
    """
    if list(texts) == ["-"] or (not texts and not sys.stdin.isatty()):
        return True
    if not texts:
        raise UsageError('no TEXT: pass one in quotes, or "-" to type or pipe lines')
    for text in texts:
        check_utf8(text, "TEXT")
    return False


def load_pipeline(model: str, *, reads_text: bool = True, **options: Any) -> Pipeline:
    """`trifold.load`, which raises UsageError for a model of text without a tokenizer if it
    `reads_text`.
    """
    from trifold.pipeline import load

    pipeline = load(model, **options)
    if reads_text and pipeline.tokenizer is None and not pipeline.config.n_patches:
        raise UsageError(
            f"{model}: the model folder has no tokenizer; name the folder of one with --tokenizer"
        )
    return pipeline


def generate_batches(
    pipeline: Pipeline,
    texts: Iterable[str],
    settings: dict[str, Any],
    batch_size: int | None = None,
    remedy: str = "split the line",
) -> Iterator[tuple[str, list[Output]]]:
    """Yield each text with its outputs, best first; a text without tokens has none. remedy: for a
    text that is too long.

    Prints how many texts are blank, unknown words, and how many outputs were cut off. Raises
    DataError with the line of a text that is too long.
    """
    from trifold.text.annotation import unknown_words

    progress = TextProgress()
    limits = list[str | None]()
    unknown = list[str]()
    parse_special = settings.get("parse_special")
    reading = {"parse_special": parse_special, "prompt": settings.get("prompt")}
    holes = dict[str, None]()

    def generate(
        n_before: int, indices: list[int], sources: list[str], on_done: OnDone
    ) -> list[list[Output]]:
        places = [f"line {n_before + index + 1}" for index in indices]
        longest = pipeline.config.max_positions
        check_lengths(pipeline, sources, places, longest, remedy, **reading)
        unknown.extend(unknown_words(pipeline.reader, sources))
        holes.update(dict.fromkeys(unparsed_holes(pipeline, sources, parse_special)))
        generated = generate_outputs(pipeline, sources, settings, on_done=on_done, first=n_before)
        limits.extend(map(end_of, chain.from_iterable(generated)))
        return generated

    size = batch_size or BATCH
    for text, outputs in in_batches(texts, size, pipeline.reader.encode, generate, progress):
        yield text, outputs or []
    warn_unknown(pipeline, unknown)
    warn_holes(holes)
    warn_limits(pipeline, limits)


def check_lengths(
    pipeline: Pipeline,
    texts: Sequence[str],
    places: Sequence[str],
    longest: int,
    remedy: str | None,
    **reading: Any,
) -> list[int]:
    """The number of tokens beyond `longest` of each text. Raises DataError for a text with such
    tokens, unless `remedy` is None. reading: options of `Pipeline.read`.
    """
    rows = pipeline.read(texts, **reading)
    excess = [max(0, len(ids) - longest) for ids in rows]
    number = next((number for number, tokens in enumerate(excess) if tokens), None)
    if number is None or remedy is None:
        return excess
    size = f"{len(rows[number]):,} tokens, and the model reads at most {longest:,}"
    raise DataError(f"{places[number]}: {size}; {remedy}")


class _Part(NamedTuple):
    """Items that are computed together. n_before: items before them. indices: of those with
    content.
    """

    n_before: int
    items: list[Any]
    indices: list[int]


def in_batches(
    items: Iterable[Item],
    size: int,
    contents: Callable[[list[Item]], Sequence[object]],
    run: Callable[[int, list[int], list[Item], OnDone], Sequence[Result]],
    on_done: OnDone,
    *,
    first: int = 0,
    workers: int = 1,
) -> Iterator[tuple[Item, Result | None]]:
    """Yield each item with its result, or None if its content is empty; print how many are.

    run: the results of some items of a batch, given the number of items before the batch, their
    indices in it, and what to call with the number of finished ones. first: the number of items
    before these. workers: batches that are computed at once, while others are read.
    """

    def compute(part: _Part, on_done: OnDone) -> dict[int, Result]:
        if not part.indices:
            return {}
        filled = [part.items[index] for index in part.indices]
        results = run(part.n_before, part.indices, filled, on_done)
        return dict(zip(part.indices, results, strict=True))

    n_read = 0
    n_blank = 0
    parts = _read_parts(items, size, contents, first)
    for part, results in compute_ahead(compute, parts, on_done, workers, is_continued=first > 0):
        yield from ((item, results.get(index)) for index, item in enumerate(part.items))
        n_read += len(part.items)
        n_blank += len(part.items) - len(part.indices)
    if n_blank:
        print_note(f"{n_blank:,} of {n_read:,} lines are blank; their output is blank too")


def _read_parts(
    items: Iterable[Item],
    size: int,
    contents: Callable[[list[Item]], Sequence[object]],
    first: int,
) -> Iterator[_Part]:
    """The items in parts of `size`, with those that have content."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        indices = [index for index, content in enumerate(contents(batch)) if content]
        yield _Part(first, batch, indices)
        first += len(batch)


REPETITION = "repetition"
_REPEATED = re.compile(r"(.{1,30}?)\1{3,}", re.DOTALL)  # at the end of an output
_TAIL = 120  # characters of an end, of which half are repeated
_SHORTEST = 12  # characters that are repeated in a short output


def end_of(output: Output) -> str | None:
    """The limit of an output; `REPETITION` if it repeats a few words until that."""
    if output.limit is None:
        return None
    repeated = _REPEATED.search(output.text[-_TAIL:])
    needed = max(_SHORTEST, min(_TAIL, len(output.text)) / 2)
    if repeated is not None and len(repeated[0]) >= needed:
        return REPETITION
    return output.limit


def warn_limits(pipeline: Pipeline, limits: Sequence[str | None]) -> None:
    """Print a warning for each limit, of those of all outputs, that the user did not request; and
    for outputs that ended in repetition.
    """
    positions = pipeline.config.decoder_side.max_positions
    reasons = {
        REPETITION: "ended in repeated words: the model has learned little yet; train it for "
        "longer, or use --no-repeat-ngram-size 3 of `generate`",
        "positions": f"stopped at the last position of the model (max_positions {positions:,})",
        "default": "stopped at the default length; raise max_new_tokens, with --max-new-tokens "
        "of `generate` or in generation_config.json",
    }
    repeats = limits.count(REPETITION)
    for limit, reason in reasons.items():
        count = limits.count(limit)
        # A larger limit does not help a model most of whose long outputs repeat themselves.
        if limit == "default" and repeats > count:
            continue
        if count and len(limits) > 1:
            print_note(f"warning: {count:,} of {len(limits):,} outputs {reason}")
        elif count:
            print_note(f"warning: the output {reason}")


def warn_unknown(pipeline: Pipeline, words: Iterable[str]) -> None:
    """Print one line with the words of the input that have unknown tokens, if there are any."""
    if different := dict.fromkeys(words):
        unknown = pipeline.reader.names["unk_token"]
        label = f"warning: unknown words ({len(different):,}) are read as {unknown}: "
        shown = ", ".join(repr(word.rstrip(".,:;!?")[:20]) for word in different)
        print_note(label + shorten(shown, max(24, 80 - len(label)), placeholder=" …"))


def unparsed_holes(
    pipeline: Pipeline, texts: Iterable[str], parse_special: bool | None
) -> list[str]:
    """The mask token and the sentinels that are written in the texts and read as letters."""
    from trifold.text.annotation import written_holes

    if pipeline.parses_special(parse_special):
        return []
    return written_holes(pipeline.reader, texts)


def warn_holes(names: Iterable[str]) -> None:
    """Print a warning with the names of `unparsed_holes`, if there are any."""
    if written := ", ".join(names):
        what = f"warning: {shorten(written, 40, placeholder=' …')} in the text is read as letters"
        print_note(f"{what}; --parse-special reads special tokens")


def generate_outputs(
    pipeline: Pipeline, texts: list[str], settings: dict[str, Any], **options: Any
) -> list[list[Output]]:
    """The outputs for each text, best first; settings, options and errors are those of
    `Pipeline.hypotheses`.
    """
    contexts = options.get("contexts") or [None] * len(texts)
    hypotheses = pipeline.hypotheses(texts, **options, **settings)
    tokens = [hypothesis.tokens for of_text in hypotheses for hypothesis in of_text]
    decoded = iter(pipeline.decode(tokens, **settings))
    return [
        [
            to_output(pipeline, text, next(decoded), hypothesis, {"context": context, **settings})
            for hypothesis in of_text
        ]
        for text, context, of_text in zip(texts, contexts, hypotheses, strict=True)
    ]


def to_output(
    pipeline: Pipeline, source: str, text: str, hypothesis: Hypothesis, settings: dict[str, Any]
) -> Output:
    """The output with its text, and what cut it off."""
    limit = None
    if hypothesis.finish_reason == "length":
        limit = pipeline.limit(source, **settings).source
    return Output(text, hypothesis.score, hypothesis.finish_reason, limit)


def one_line(text: str) -> str:
    """The text without line breaks, so that line n of the output belongs to line n of the input."""
    return " ".join(text.splitlines())
