"""`trifold predict`: what a model says of texts that it reads, or of pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TextIO

import typer

from trifold.cli.generate import given, one_line
from trifold.cli.options import BatchSize, Device, Dtype, Json, Model, Out
from trifold.cli.streams import clean, note, writing
from trifold.errors import DataError, UsageError

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France." --top-k 3',
    "trifold predict runs/reviews - --json < reviews.txt",
    'trifold predict deepset/minilm-uncased-squad2 "Who wrote it?" --context "It was written by Ada."',
    "trifold predict google/vit-base-patch16-224 cat.jpg dog.png",
)
PICTURES = 64  # read before the first answer


def run(
    model: Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|-",
            help="Texts, or picture files; `-` (or a pipe) reads lines from standard input.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="fill-mask, classify, tag, answer, next-sentence or embed.",
            show_default="what the model's heads are for",
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            "--context",
            metavar="TEXT",
            help="The second text, or where the answer is: one for all texts, or repeated, one for each.",
        ),
    ] = None,
    tsv: Annotated[
        bool,
        typer.Option(
            "--tsv", help="An input is two texts with a tab between them, also for classify and embed."
        ),
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="The K likeliest.", show_default="5, and 1 answer"),
    ] = None,
    merge: Annotated[
        Literal["none", "simple", "first", "average", "max"] | None,
        typer.Option(help="tag: how tokens become words and spans.", show_default="first"),
    ] = None,
    max_answer_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="answer: tokens, at most.", show_default="15")
    ] = None,
    impossible: Annotated[
        bool | None, typer.Option("--impossible", help="answer: there may be none.", show_default=False)
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="answer: tokens of a part of a long context.", show_default="384"
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="answer: tokens that two parts share.", show_default="128"),
    ] = None,
    pooling: Annotated[
        Literal["mean", "cls", "last", "pooler"] | None,
        typer.Option(help="embed: which states.", show_default="mean"),
    ] = None,
    normalise: Annotated[
        bool | None, typer.Option("--normalise", help="embed: vectors of length 1.", show_default=False)
    ] = None,
    on_overflow: Annotated[
        Literal["error", "truncate"] | None,
        typer.Option(help="What becomes of a text too long for the model.", show_default="error"),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    json: Json = False,
    out: Out = None,
) -> None:
    """Fill in masks, classify, tag, answer or embed: one output line for each text, or for each line of input."""
    asked = given(
        top_k=top_k,
        merge=merge,
        max_answer_length=max_answer_length,
        impossible=impossible,
        max_length=max_length,
        stride=stride,
        pooling=pooling,
        normalise=normalise,
        on_overflow=on_overflow,
    )
    texts, pairs = text or [], pair or []
    reads_lines = texts == ["-"] or (not texts and not sys.stdin.isatty())
    if not texts and not reads_lines:
        raise UsageError('no TEXT: give one in quotes, or "-" to type or pipe lines')
    if pairs and tsv:
        raise UsageError("--pair and --tsv both give the second text: leave one of them out")
    if len(pairs) not in (0, 1, 1 if reads_lines else len(texts)):
        raise UsageError(
            f"--pair: {len(pairs)} second texts for {len(texts)} texts; give one for each, or one for all"
        )
    for value, name in [*((one, "TEXT") for one in texts), *((one, "--pair") for one in pairs)]:
        clean(value, name)

    from trifold.cli.answers import PORTION, opened
    from trifold.data import iter_lines
    from trifold.predict.predict import TASKS, choose_task

    pipeline = opened(model, device, dtype)
    name = choose_task(pipeline.config, task)
    splits = tsv or (TASKS[name].pairs == "must" and not pairs)
    sources = _lines(iter_lines("-")) if reads_lines else _arguments(texts)
    inputs: Iterable[Input] = (_input(place, line, splits, blank=reads_lines) for place, line in sources)
    inputs = _paired(inputs, pairs) if pairs else inputs
    # Who types waits for an answer to each line.
    typed = reads_lines and sys.stdin.isatty()
    portion = 1 if typed else batch_size or (PICTURES if pipeline.config.n_patches else PORTION)
    with writing(out) as results:
        for one, found in predictions(pipeline, inputs, name, asked, portion, skip_blank=reads_lines):
            _print(one, name, found, json, results)


# --- inputs ----------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """A text, or the path of a picture, with its partner if it has one, and what errors call it."""

    place: str
    text: str
    pair: str | None = None


def _lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"line {number}", line) for number, line in enumerate(lines, start=1))


def _arguments(texts: list[str]) -> Iterator[tuple[str, str]]:
    return ((f"text {number} of {len(texts)}", text) for number, text in enumerate(texts, start=1))


def _input(place: str, line: str, splits: bool, *, blank: bool) -> Input:
    """The line, cut at its tab where there must be one; a `blank` one may have none."""
    if not splits or (blank and not line.strip()):
        return Input(place, line)
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(
            f"{place}: {len(parts) - 1} tabs; give two texts with one tab between them, or the second by --pair"
        )
    return Input(place, parts[0], parts[1])


def _paired(inputs: Iterable[Input], pairs: list[str]) -> Iterator[Input]:
    return (one._replace(pair=pairs[n if len(pairs) > 1 else 0]) for n, one in enumerate(inputs))


# --- predictions -----------------------------------------------------------------------------------------


def predictions(
    pipeline: Pipeline,
    inputs: Iterable[Input],
    task: str,
    asked: dict[str, Any],
    portion: int,
    *,
    skip_blank: bool,
) -> Iterator[tuple[Input, Any]]:
    """Each input with what is predicted for it; None for a blank line, where these are skipped.

    Blank lines and texts that were cut are counted, and progress said, on standard error.
    """
    from trifold.cli.answers import Progress

    stream, progress = iter(inputs), Progress()
    read = blank = 0
    while batch := list(islice(stream, portion)):
        full = [n for n, one in enumerate(batch) if one.text.strip() or not skip_blank]
        found: dict[int, Any] = {}
        if full:
            some = [batch[n] for n in full]
            paired = [one.pair for one in some if one.pair is not None]
            said = pipeline.predict(
                [one.text for one in some],
                paired or None,
                task=task,
                places=[one.place for one in some],
                on_done=progress,
                on_cut=note,
                **asked,
            )
            found = dict(zip(full, said, strict=True))
        yield from ((one, found.get(n)) for n, one in enumerate(batch))
        read, blank = read + len(batch), blank + len(batch) - len(full)
    if blank:
        note(f"{blank:,} of {read:,} lines are blank: their output is blank too")


# --- output ----------------------------------------------------------------------------------------------


def _print(one: Input, task: str, found: Any, json: bool, results: TextIO) -> None:
    if json:
        pair = {} if one.pair is None else {"pair": one.pair}
        line = {
            "source": one.text,
            **pair,
            "task": task,
            "outputs": plain(found if found is not None else []),
        }
        print(dumps(line, ensure_ascii=False), file=results, flush=True)
    else:
        print("" if found is None else SAID[task](found), file=results, flush=True)


def plain(value: Any) -> Any:
    """Predictions as JSON has them: an object for a named tuple, a list of numbers for a vector."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _fillings(masks: Any) -> str:
    return " / ".join("\t".join(f"{one_line(one.text)} {one.score:.4f}" for one in mask) for mask in masks)


def _labels(labels: Any) -> str:
    return "\t".join(f"{one_line(one.label)} {one.score:.4f}" for one in labels)


def _tags(tags: Any) -> str:
    return "\t".join(
        f"{one_line(one.label)} {one.start}:{one.end} {one_line(one.text)} {one.score:.4f}" for one in tags
    )


def _answers(answers: Any) -> str:
    return "\t".join(f"{one.start}:{one.end} {one_line(one.text)} {one.score:.4f}" for one in answers)


def _follows(one: Any) -> str:
    return f"{'follows' if one.follows else 'does not follow'} {one.score:.4f}"


def _vector(vector: Any) -> str:
    return " ".join(f"{number:.6g}" for number in vector.tolist())


# One line for each input: what was found, tab after tab, with its probability last.
SAID = {
    "fill-mask": _fillings,
    "classify": _labels,
    "tag": _tags,
    "answer": _answers,
    "next-sentence": _follows,
    "embed": _vector,
}
