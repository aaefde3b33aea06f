"""`trifold generate`: have a model write, for one text or for every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model, Out
from trifold.cli.streams import clean, writing
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.cli.answers import Answer

EXAMPLES = (
    'trifold generate runs/demo "I love dogs."',
    "trifold generate runs/demo - < english.txt > french.txt",
    'trifold generate runs/demo "I love dogs." --num-beams 5 --num-return-sequences 3 --json',
)


def run(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT|-]", help="The text; `-` (or a pipe) reads lines from standard input."),
    ] = None,
    num_beams: Beams = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="A", help="Exponent of the length; larger favours longer outputs.")
    ] = None,
    length_penalty_form: Annotated[
        Literal["power", "gnmt"] | None, typer.Option(help="score / n^A, or score / ((5 + n) / 6)^A.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest output.", show_default="tokens of the source + 50"),
    ] = None,
    do_sample: Annotated[
        bool | None,
        typer.Option("--do-sample/--no-do-sample", help="Draw tokens at random.", show_default=False),
    ] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", help="Sample; below 1 is bolder.")] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Sample among the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Sample among the fewest tokens that hold this probability."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of sampling.")] = None,
    num_return_sequences: Annotated[
        int | None, typer.Option(metavar="N", help="Outputs for each text, best first, one a line.")
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    json: Json = False,
    out: Out = None,
) -> None:
    """Translate or continue a text, or every line of standard input: one output line for each input line."""
    asked = given(
        num_beams=num_beams,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        num_return_sequences=num_return_sequences,
    )
    reads_lines = text == "-" or (text is None and not sys.stdin.isatty())
    if text is None and not reads_lines:
        raise UsageError('no TEXT: give one in quotes, or "-" to type or pipe lines')

    from trifold.cli.answers import answers, opened, outputs
    from trifold.data import iter_lines

    if text is not None:
        clean(text, "TEXT")
    pipeline = opened(model, device, dtype)
    with writing(out) as results:
        if reads_lines:
            # Who types waits for an answer to each line.
            portion = 1 if sys.stdin.isatty() else batch_size
            for source, found in answers(pipeline, iter_lines("-"), asked, portion):
                _print(source, found, json, results)
        else:
            assert text is not None
            _print(text, outputs(pipeline, [text], asked)[0], json, results)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _print(source: str, found: Sequence[Answer], json: bool, results: TextIO) -> None:
    if json:
        line = dumps(
            {"source": source, "outputs": [answer._asdict() for answer in found]}, ensure_ascii=False
        )
        print(line, file=results, flush=True)
        return
    for text in [one_line(answer.text) for answer in found] or [""]:
        print(text, file=results, flush=True)


def one_line(text: str) -> str:
    """The text without line breaks, so that line n of the output belongs to line n of the input."""
    return " ".join(text.splitlines())
