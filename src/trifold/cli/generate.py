"""`trifold generate`: translate or continue one text, or every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from trifold.cli.options import (
    BatchSize,
    Device,
    Dtype,
    Json,
    Model,
    Out,
    Weights,
    generation_settings,
    with_generation_options,
)
from trifold.cli.terminal import check_utf8, open_output
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.cli.batch import Output
    from trifold.generate import Hypothesis
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold generate runs/demo "I love dogs."',
    "trifold generate runs/demo - < english.txt > french.txt",
    'trifold generate runs/demo "I love dogs." --num-beams 5 --json',
    'trifold generate gpt2 "Once upon" --temperature 0.8 --top-p 0.9 --stream',
)


@with_generation_options
def run(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT|-]", help="The text; `-` (or a pipe) reads lines from standard input."),
    ] = None,
    *,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Smaller model that speculates: same output, faster."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the output while it is generated.")] = False,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    weights: Weights = None,
    json: Json = False,
    out: Out = None,
    **options: Any,
) -> None:
    """Translate or continue a text, or every line of standard input: one output line for each input line.

    Options that are not given are taken from the model's generation_config.json.
    """
    settings = generation_settings(options)
    reads_lines = text == "-" or (text is None and not sys.stdin.isatty())
    if text is None and not reads_lines:
        raise UsageError('no TEXT: pass one in quotes, or "-" to type or pipe lines')
    if stream and (reads_lines or json):
        raise UsageError("--stream prints one TEXT: pass the text in quotes, and leave out --json")

    from trifold.cli.batch import LimitWarning, generate_batches, generate_outputs, load_pipeline
    from trifold.data import iter_lines

    if text is not None:
        check_utf8(text, "TEXT")
    pipeline = load_pipeline(model, device, dtype, weights)
    if draft is not None:
        settings["draft"] = load_pipeline(draft, device, dtype, weights)
    with open_output(out) as results:
        if reads_lines:
            # A person who types expects an output after each line.
            size = 1 if sys.stdin.isatty() else batch_size
            for source, outputs in generate_batches(pipeline, iter_lines("-"), settings, size):
                _print(source, outputs, json, results)
            return
        assert text is not None
        if stream:
            outputs = _stream(pipeline, text, settings, results)
        else:
            outputs = generate_outputs(pipeline, [text], settings)[0]
            if json or len(outputs) != 1:
                _print(text, outputs, json, results)
            else:  # a single output may have several lines
                print(outputs[0].text, file=results, flush=True)
        warning = LimitWarning(pipeline)
        warning.count(outputs)
        warning.print()


def _stream(pipeline: Pipeline, text: str, settings: dict[str, Any], results: TextIO) -> list[Output]:
    """Print the output while it is generated."""
    from trifold.cli.batch import to_output

    ended: list[Hypothesis] = []
    parts = []
    for part in pipeline.stream(text, on_end=ended.append, **settings):
        parts.append(part)
        print(part, end="", file=results, flush=True)
    print(file=results, flush=True)
    return [to_output(pipeline, text, "".join(parts), output, settings) for output in ended]


def _print(source: str, outputs: Sequence[Output], json: bool, results: TextIO) -> None:
    from trifold.cli.batch import one_line

    if json:
        lines = [
            dumps({"source": source, "outputs": [each._asdict() for each in outputs]}, ensure_ascii=False)
        ]
    else:
        lines = [one_line(each.text) for each in outputs] or [""]
    for line in lines:
        print(line, file=results, flush=True)
