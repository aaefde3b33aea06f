"""`trifold predict`: classify, tag, answer, fill in masks or embed texts or pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from trifold.cli.options import BatchSize, Device, Dtype, Json, Model, Out, given
from trifold.cli.terminal import check_utf8, open_output, print_note
from trifold.errors import DataError, UsageError

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France."',
    "trifold predict runs/reviews - --json < reviews.txt",
    'trifold predict runs/qa "Who wrote it?" --context "It was written by Ada."',
    "trifold predict google/vit-base-patch16-224 cat.jpg dog.png",
)
PICTURE_BATCH = 64  # pictures read before the first prediction


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
            show_default="by the heads of the model",
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            "--context",
            metavar="TEXT",
            help="The second text, or the context of a question: one for all texts, or repeated for each.",
        ),
    ] = None,
    tsv: Annotated[
        bool,
        typer.Option("--tsv", help="Inputs are two texts separated by a tab, for classify and embed too."),
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="The K most likely results.", show_default="5; answer: 1"),
    ] = None,
    merge: Annotated[
        Literal["none", "simple", "first", "average", "max"] | None,
        typer.Option(help="tag: how tokens become words and spans.", show_default="first"),
    ] = None,
    max_answer_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="answer: maximum tokens.", show_default="15")
    ] = None,
    impossible: Annotated[
        bool | None,
        typer.Option("--impossible", help="answer: the text may contain none.", show_default=False),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="answer: tokens of a window over a long context.", show_default="384"
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="answer: tokens that windows share.", show_default="128"),
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
        typer.Option(help="For a text that is too long for the model.", show_default="error"),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    json: Json = False,
    out: Out = None,
) -> None:
    """Fill in masks, classify, tag, answer or embed: one output line for each text, or for each line of input."""
    options = given(
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
        raise UsageError('no TEXT: pass one in quotes, or "-" to type or pipe lines')
    if pairs and tsv:
        raise UsageError("--pair and --tsv both set the second text: leave one of them out")
    if len(pairs) not in (0, 1, 1 if reads_lines else len(texts)):
        raise UsageError(
            f"--pair: {len(pairs)} second texts for {len(texts)} texts; pass one for each, or one for all"
        )
    for value, name in [*((one, "TEXT") for one in texts), *((one, "--pair") for one in pairs)]:
        check_utf8(value, name)

    from trifold.cli.batch import BATCH, load_pipeline
    from trifold.data import iter_lines
    from trifold.predict.predict import TASKS, choose_task

    pipeline = load_pipeline(model, device, dtype)
    name = choose_task(pipeline.config, task)
    lines = iter_lines("-") if reads_lines else texts
    is_split = tsv or (TASKS[name].pairs == "must" and not pairs)
    inputs: Iterator[Input] = (
        _input(number, line, is_split, len(texts), reads_lines) for number, line in enumerate(lines, start=1)
    )
    if pairs:
        inputs = (one._replace(pair=pairs[n if len(pairs) > 1 else 0]) for n, one in enumerate(inputs))
    # A person who types expects an output after each line.
    is_typed = reads_lines and sys.stdin.isatty()
    size = 1 if is_typed else batch_size or (PICTURE_BATCH if pipeline.config.n_patches else BATCH)
    with open_output(out) as results:
        for one, found in _predictions(pipeline, inputs, name, options, size, skip_blank=reads_lines):
            print(_format(one, name, found, json), file=results, flush=True)


class Input(NamedTuple):
    """A text or the path of a picture, its place for messages, and its second text."""

    place: str
    text: str
    pair: str | None = None


def _input(number: int, line: str, is_split: bool, count: int, reads_lines: bool) -> Input:
    """Split the line at its tab if the task needs two texts; a line of standard input may be blank."""
    place = f"line {number}" if reads_lines else f"text {number} of {count}"
    if not is_split or (reads_lines and not line.strip()):
        return Input(place, line)
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(
            f"{place}: {len(parts) - 1} tabs; pass two texts with one tab between them, or the second by --pair"
        )
    return Input(place, parts[0], parts[1])


def _predictions(
    pipeline: Pipeline,
    inputs: Iterable[Input],
    task: str,
    options: dict[str, Any],
    batch_size: int,
    *,
    skip_blank: bool,
) -> Iterator[tuple[Input, Any]]:
    """Yield each input with its prediction; None for a blank line if these are skipped."""
    from trifold.cli.batch import Progress, report_blank

    stream, progress = iter(inputs), Progress()
    read = blank = 0
    while batch := list(islice(stream, batch_size)):
        nonblank = [n for n, one in enumerate(batch) if one.text.strip() or not skip_blank]
        found: dict[int, Any] = {}
        if nonblank:
            some = [batch[n] for n in nonblank]
            predictions = pipeline.predict(
                [one.text for one in some],
                [one.pair for one in some if one.pair is not None] or None,
                task=task,
                places=[one.place for one in some],
                on_done=progress,
                on_cut=print_note,
                **options,
            )
            found = dict(zip(nonblank, predictions, strict=True))
        yield from ((one, found.get(n)) for n, one in enumerate(batch))
        read, blank = read + len(batch), blank + len(batch) - len(nonblank)
    report_blank(blank, read)


# --- output ----------------------------------------------------------------------------------------------


def _format(one: Input, task: str, found: Any, json: bool) -> str:
    """One line: JSON, or the results separated by tabs, each with its probability last."""
    if not json:
        return "" if found is None else FORMATS[task](found)
    pair = {} if one.pair is None else {"pair": one.pair}
    outputs = to_json(found if found is not None else [])
    return dumps({"source": one.text, **pair, "task": task, "outputs": outputs}, ensure_ascii=False)


def to_json(value: Any) -> Any:
    """Predictions as JSON values: an object for a named tuple, a list of numbers for a vector."""
    if hasattr(value, "_asdict"):
        return {key: to_json(item) for key, item in value._asdict().items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _format_masks(masks: Any) -> str:
    return " / ".join("\t".join(f"{_line(one.text)} {one.score:.4f}" for one in mask) for mask in masks)


def _format_labels(labels: Any) -> str:
    return "\t".join(f"{_line(one.label)} {one.score:.4f}" for one in labels)


def _format_tags(tags: Any) -> str:
    return "\t".join(
        f"{_line(one.label)} {one.start}:{one.end} {_line(one.text)} {one.score:.4f}" for one in tags
    )


def _format_answers(answers: Any) -> str:
    return "\t".join(f"{one.start}:{one.end} {_line(one.text)} {one.score:.4f}" for one in answers)


def _format_next_sentence(one: Any) -> str:
    return f"{'follows' if one.follows else 'does not follow'} {one.score:.4f}"


def _format_vector(vector: Any) -> str:
    return " ".join(f"{number:.6g}" for number in vector.tolist())


def _line(text: str) -> str:
    return " ".join(text.splitlines())


FORMATS = {
    "fill-mask": _format_masks,
    "classify": _format_labels,
    "tag": _format_tags,
    "answer": _format_answers,
    "next-sentence": _format_next_sentence,
    "embed": _format_vector,
}
