"""`trifold generate`: translate or continue one text, or every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from trifold.cli import batch, options as declared
from trifold.cli.batch import Output, load_pipeline, one_line
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.terminal import check_output, open_output, print_result
from trifold.errors import UsageError
from trifold.jsonfiles import json_line

if TYPE_CHECKING:
    from trifold.generate import Hypothesis
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold generate runs/demo "I love dogs."',
    "trifold generate runs/demo - < english.txt > french.txt",
    'trifold generate gpt2 "Once upon" --temperature 0.8 --top-p 0.9 --stream',
    'trifold generate facebook/bart-base "The <mask> sat on the mat."',
)
# Panels of the help: those of the settings, and the other options.
PANELS = {
    FIRST: (*declared.GENERATION_PANELS[FIRST], "stream", "json", "out", "overwrite"),
    **{title: names for title, names in declared.GENERATION_PANELS.items() if title != FIRST},
    "Texts, model and machine": (
        *("as_text", "tokenizer", "device", "dtype", "weights", "batch_size", "draft"),
    ),
}


@in_panels(PANELS)
@declared.with_options(declared.generation_options())
def run(
    model: declared.Model,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT|-]", help="The text; `-` (or a pipe) reads lines from standard input."
        ),
    ] = None,
    *,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Smaller model that speculates: same output, faster."),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the output while it is generated.")
    ] = False,
    batch_size: declared.BatchSize = None,
    device: declared.Device = None,
    dtype: declared.Dtype = "float32",
    tokenizer: declared.Codec = None,
    weights: declared.Weights = "file",
    as_text: declared.AsText = False,
    json: declared.Json = False,
    out: declared.Out = None,
    overwrite: declared.Overwrite = False,
    **options: Any,
) -> None:
    """Translate or continue a text, or every line of standard input: one output line for each input
    line, or --num-return-sequences lines.

    Options that are not given are taken from the model's generation_config.json.
    """
    settings = declared.generation_settings(options)
    is_piped = batch.reads_stdin([] if text is None else [text])
    if stream and (is_piped or json):
        raise UsageError("--stream prints one TEXT: pass the text in quotes, and leave out --json")

    check_output(out, overwrite=overwrite)

    from trifold.cli.names import Typed, check_no_files

    if text is not None and not as_text:
        words = declared.option_words(**options, stream=stream or None, json=json or None, out=out)
        check_no_files([text], Typed(f"generate {model}", words))

    precision: dict[str, Any] = {"device": device, "dtype": dtype, "weights": weights}
    pipeline = load_pipeline(model, tokenizer=tokenizer, **precision)
    if draft is not None:
        settings["draft"] = load_pipeline(draft, reads_text=False, **precision)
    with open_output(out) as results:
        if is_piped or text is None:
            # A person who types expects an output after each line.
            size = 1 if sys.stdin.isatty() else batch_size
            _generate_lines(pipeline, settings, size, json, results)
        elif stream:
            outputs = _stream(pipeline, text, settings, results)
            _warn(pipeline, text, outputs, settings)
        else:
            outputs = _generate_text(pipeline, text, settings, json, results)
            _warn(pipeline, text, outputs, settings)


def _generate_lines(
    pipeline: Pipeline,
    settings: dict[str, Any],
    batch_size: int | None,
    json: bool,
    results: TextIO,
) -> None:
    """Print the outputs for each line of standard input."""
    from trifold.data import iter_lines

    count = _count_outputs(pipeline, settings)
    lines = iter_lines("-")
    for source, outputs in batch.generate_batches(pipeline, lines, settings, batch_size):
        _print(source, outputs, count, json, results)


def _generate_text(
    pipeline: Pipeline, text: str, settings: dict[str, Any], json: bool, results: TextIO
) -> list[Output]:
    """Print the outputs for one text and return them."""
    count = _count_outputs(pipeline, settings)
    outputs = batch.generate_outputs(pipeline, [text], settings)[0]
    if json or count > 1:
        _print(text, outputs, count, json, results)
    else:  # a single output may have several lines
        print_result(outputs[0].text, results)
    return outputs


def _count_outputs(pipeline: Pipeline, settings: dict[str, Any]) -> int:
    """The number of outputs for each text."""
    count: int = settings.get("num_return_sequences", pipeline.generation.num_return_sequences)
    return count


def _warn(
    pipeline: Pipeline, text: str, outputs: Sequence[Output], settings: dict[str, Any]
) -> None:
    """Print warnings about the words of a text and the ends of its outputs, if there are any."""
    from trifold.text.annotation import unknown_words

    batch.warn_unknown(pipeline, unknown_words(pipeline.reader, [text]))
    parse_special = settings.get("parse_special")
    batch.warn_holes(batch.unparsed_holes(pipeline, [text], parse_special))
    batch.warn_limits(pipeline, [*map(batch.end_of, outputs)])


def _stream(
    pipeline: Pipeline, text: str, settings: dict[str, Any], results: TextIO
) -> list[Output]:
    """Print an output while it is generated."""
    ended: list[Hypothesis] = []
    parts = []
    for part in pipeline.stream(text, on_end=ended.append, **settings):
        parts.append(part)
        print_result(part, results, end="")
    print_result("", results)
    return [
        batch.to_output(pipeline, text, "".join(parts), hypothesis, settings)
        for hypothesis in ended
    ]


def _print(source: str, outputs: Sequence[Output], count: int, json: bool, results: TextIO) -> None:
    """Print one line of JSON, or `count` lines, of which the last are empty if there are fewer
    outputs.
    """
    if json:
        values = {"source": source, "outputs": [output._asdict() for output in outputs]}
        lines = [json_line(values)]
    else:
        lines = [one_line(output.text) for output in outputs]
        lines += [""] * (count - len(lines))
    for line in lines:
        print_result(line, results)
