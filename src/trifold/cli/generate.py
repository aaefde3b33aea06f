"""`trifold generate`: have a model write, for one text or for every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from trifold.cli import search_options as search
from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model, Out, Weights
from trifold.cli.streams import clean, writing
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.cli.answers import Answer
    from trifold.generate import Hypothesis
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold generate runs/demo "I love dogs."',
    "trifold generate runs/demo - < english.txt > french.txt",
    'trifold generate runs/demo "I love dogs." --num-beams 5 --num-return-sequences 3 --json',
    'trifold generate runs/demo "I love dogs." --temperature 0.8 --top-p 0.9 --seed 1 --stream',
)


def run(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT|-]", help="The text; `-` (or a pipe) reads lines from standard input."),
    ] = None,
    num_beams: Beams = None,
    length_penalty: search.LengthPenalty = None,
    length_penalty_form: search.LengthPenaltyForm = None,
    early_stopping: search.EarlyStopping = None,
    renormalize_logits: search.Renormalize = None,
    num_beam_groups: search.Groups = None,
    diversity_penalty: search.Diversity = None,
    force_words: search.ForceWords = None,
    do_sample: search.DoSample = None,
    temperature: search.Temperature = None,
    top_k: search.TopK = None,
    top_k_form: search.TopKForm = None,
    top_p: search.TopP = None,
    min_p: search.MinP = None,
    typical_p: search.TypicalP = None,
    seed: search.Seed = None,
    penalty_alpha: search.PenaltyAlpha = None,
    prompt_lookup_num_tokens: search.PromptLookup = None,
    draft: search.Draft = None,
    num_assistant_tokens: search.AssistantTokens = None,
    repetition_penalty: search.RepetitionPenalty = None,
    presence_penalty: search.PresencePenalty = None,
    frequency_penalty: search.FrequencyPenalty = None,
    no_repeat_ngram_size: search.NoRepeat = None,
    bad_words: search.BadWords = None,
    max_new_tokens: search.MaxNewTokens = None,
    min_new_tokens: search.MinNewTokens = None,
    stop_strings: search.StopStrings = None,
    num_return_sequences: search.Outputs = None,
    prefill_chunk_size: search.ChunkSize = None,
    cache: search.Cache = None,
    stream: search.Stream = False,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    weights: Weights = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Translate or continue a text, or every line of standard input: one output line for each input line."""
    asked = given(
        num_beams=num_beams,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        early_stopping=search.EARLY_STOPPING.get(early_stopping or "", early_stopping),
        renormalize_logits=renormalize_logits,
        num_beam_groups=num_beam_groups,
        diversity_penalty=diversity_penalty,
        force_words=force_words,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_k_form=top_k_form,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        seed=seed,
        penalty_alpha=penalty_alpha,
        prompt_lookup_num_tokens=prompt_lookup_num_tokens,
        num_assistant_tokens=num_assistant_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        bad_words=bad_words,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop_strings=stop_strings,
        num_return_sequences=num_return_sequences,
        prefill_chunk_size=prefill_chunk_size,
        cache=cache,
    )
    reads_lines = text == "-" or (text is None and not sys.stdin.isatty())
    if text is None and not reads_lines:
        raise UsageError('no TEXT: give one in quotes, or "-" to type or pipe lines')
    if stream and (reads_lines or json):
        raise UsageError(
            "--stream writes one TEXT as it comes: give the text in quotes, and leave out --json"
        )

    from trifold.cli.answers import Cuts, answers, opened, outputs
    from trifold.data import iter_lines

    if text is not None:
        clean(text, "TEXT")
    pipeline = opened(model, device, dtype, weights)
    if draft is not None:
        asked["draft"] = opened(draft, device, dtype, weights)
    with writing(out) as results:
        if reads_lines:
            # Who types waits for an answer to each line.
            portion = 1 if sys.stdin.isatty() else batch_size
            for source, found in answers(pipeline, iter_lines("-"), asked, portion):
                _print(source, found, json, results)
            return
        assert text is not None
        if stream:
            found = _stream(pipeline, text, asked, results)
        else:
            found = outputs(pipeline, [text], asked)[0]
            if json or len(found) != 1:
                _print(text, found, json, results)
            else:  # alone, it may have as many lines as it likes
                print(found[0].text, file=results, flush=True)
        cuts = Cuts(pipeline)
        cuts.count(found)
        cuts.say()


def _stream(pipeline: Pipeline, text: str, asked: dict[str, Any], results: TextIO) -> list[Answer]:
    """Print the output while it comes."""
    from trifold.cli.answers import answer_of

    ended: list[Hypothesis] = []
    pieces = []
    for piece in pipeline.stream(text, on_end=ended.append, **asked):
        pieces.append(piece)
        print(piece, end="", file=results, flush=True)
    print(file=results, flush=True)
    return [answer_of(pipeline, text, "".join(pieces), output, asked) for output in ended]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; typer gives an empty list for one that may be repeated and was not given."""
    return {name: value for name, value in options.items() if value is not None and value != []}


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
