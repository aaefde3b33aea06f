"""`trifold predict`: classify, tag, answer, fill in masks or embed texts or pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import typer

from trifold.cli.batch import BATCH, Progress, in_batches, load_pipeline, one_line, reads_stdin, warn_unknown
from trifold.cli.options import BatchSize, Codec, Device, Dtype, Json, Model, Out, given, option, with_options
from trifold.cli.terminal import open_output, print_note, print_result
from trifold.errors import DataError, UsageError, check_utf8, printable
from trifold.jsonfiles import json_line

EXAMPLES = (
    'trifold predict bert-base-uncased "Paris is the [MASK] of France."',
    "trifold predict runs/reviews - --json < reviews.txt",
    'trifold predict runs/qa "Who wrote it?" --context "It was written by Ada."',
    "trifold predict google/vit-base-patch16-224 cat.jpg dog.png",
)
PICTURE_BATCH = 64  # pictures read before the first prediction

# Options of the tasks.
OPTIONS = {
    "top_k": option(int, "The K most likely results.", metavar="K", min=1, show_default="5; answer: 1"),
    "merge": option(
        Literal["none", "simple", "first", "average", "max", "words"],
        "tag: how tokens become words and spans.",
        show_default="words; WordPiece: first",
    ),
    "max_answer_length": option(int, "answer: maximum tokens.", metavar="N", min=1, show_default="15"),
    "impossible": option(bool, "answer: the text may contain none.", "--impossible", show_default=False),
    "max_length": option(
        int, "answer: tokens of a window over a long context.", metavar="N", min=1, show_default="384"
    ),
    "stride": option(int, "answer: tokens that windows share.", metavar="N", min=0, show_default="128"),
    "pooling": option(
        Literal["mean", "cls", "last", "max", "pooler"],
        "embed: which states.",
        show_default="mean, or that of the folder",
    ),
    "normalise": option(
        bool, "embed: vectors of length 1.", "--normalise/--no-normalise", show_default=False
    ),
    "on_overflow": option(
        Literal["error", "truncate"], "For a text that is too long for the model.", show_default="error"
    ),
}


@with_options(OPTIONS)
def run(
    model: Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|-", help="Texts, or picture files; `-` (or a pipe) reads lines from standard input."
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
    *,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    tokenizer: Codec = None,
    json: Json = False,
    out: Out = None,
    **options: Any,
) -> None:
    """Fill in masks, classify, tag, answer or embed: one output line for each text, or for each line of input."""
    texts, pairs = text or [], pair or []
    is_piped = reads_stdin(texts)
    if pairs and tsv:
        raise UsageError("--pair and --tsv both set the second text: leave one of them out")
    if len(pairs) not in (0, 1, 1 if is_piped else len(texts)):
        raise UsageError(
            f"--pair: {len(pairs)} second texts for {len(texts)} texts; pass one for each, or one for all"
        )
    for second in pairs:
        check_utf8(second, "--pair")

    from trifold.data import iter_lines
    from trifold.predict.predict import TASKS, choose_task
    from trifold.text.annotation import unknown_words

    pipeline = load_pipeline(model, device=device, dtype=dtype, tokenizer=tokenizer)
    name = choose_task(pipeline.config, task)
    is_split = tsv or (TASKS[name].pairs == "must" and not pairs)
    count = None if is_piped else len(texts)
    inputs = _inputs(iter_lines("-") if is_piped else texts, count, pairs, is_split=is_split)
    progress, unknown = Progress(), list[str]()

    def contents(batch: list[Input]) -> list[object]:
        return [one.text.strip() or not is_piped for one in batch]

    def predict(read: int, indices: list[int], batch: list[Input]) -> Any:
        if not pipeline.config.n_patches:
            unknown.extend(unknown_words(pipeline.reader, (f"{one.text} {one.pair or ''}" for one in batch)))
        return pipeline.predict(
            [one.text for one in batch],
            [one.pair for one in batch if one.pair is not None] or None,
            task=name,
            places=[one.place for one in batch],
            on_done=progress,
            on_cut=print_note,
            **given(**options),
        )

    # A person who types expects an output after each line.
    is_typed = is_piped and sys.stdin.isatty()
    size = 1 if is_typed else batch_size or (PICTURE_BATCH if pipeline.config.n_patches else BATCH)
    with open_output(out) as results:
        for one, found in in_batches(inputs, size, contents, predict):
            print_result(_format(one, name, found, json), results)
    warn_unknown(pipeline, unknown)


class Input(NamedTuple):
    """A text or the path of a picture, its place for messages, and its second text."""

    place: str
    text: str
    pair: str | None


def _inputs(lines: Iterable[str], count: int | None, pairs: list[str], *, is_split: bool) -> Iterator[Input]:
    """The texts, or with `count` None the lines of standard input, of which blank ones are never split at a tab."""
    for number, line in enumerate(lines, start=1):
        place = f"line {number}" if count is None else f"text {number} of {count}"
        pair = pairs[0 if len(pairs) == 1 else number - 1] if pairs else None
        if is_split and (line.strip() or count is not None):
            parts = line.split("\t")
            if len(parts) != 2:
                raise DataError(
                    f"{place}: {len(parts) - 1} tabs; pass two texts with one tab between them, "
                    "or the second by --pair"
                )
            line, pair = parts
        yield Input(place, line, pair)


# --- output ----------------------------------------------------------------------------------------------


def _format(one: Input, task: str, found: Any, json: bool) -> str:
    """One line: JSON, or the results separated by tabs, each with its probability last."""
    if not json:
        return "" if found is None else _format_text(task, found)
    pair = {} if one.pair is None else {"pair": one.pair}
    outputs = to_json(found if found is not None else [])
    return json_line({"source": one.text, **pair, "task": task, "outputs": outputs})


def to_json(value: Any) -> Any:
    """Predictions as JSON values: an object for a named tuple, a list of numbers for a vector."""
    if hasattr(value, "_asdict"):
        return {key: to_json(item) for key, item in value._asdict().items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _format_text(task: str, found: Any) -> str:
    match task:
        case "fill-mask":
            masks = [[f"{printable(one_line(one.text))} {one.score:.4f}" for one in mask] for mask in found]
            return " / ".join(map("\t".join, masks))
        case "classify":
            parts = [f"{printable(one_line(one.label))} {one.score:.4f}" for one in found]
        case "tag":
            parts = [
                f"{printable(one_line(one.label))} {one.start}:{one.end} {one_line(one.text)} {one.score:.4f}"
                for one in found
            ]
        case "answer":
            parts = [f"{one.start}:{one.end} {one_line(one.text)} {one.score:.4f}" for one in found]
        case "next-sentence":
            parts = [f"{'follows' if found.follows else 'does not follow'} {found.score:.4f}"]
        case _:
            return " ".join(f"{number:.6g}" for number in found.tolist())
    return "\t".join(parts)
