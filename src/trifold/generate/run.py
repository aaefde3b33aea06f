"""The way in: settings choose a search, the search writes, and outputs come back a row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig, end_ids
from trifold.generate.ends import Codec, Ends, Hypothesis
from trifold.generate.live import Live, Model, at_rest
from trifold.generate.processors import Processor, processor
from trifold.generate.samplers import Sampler, drawn, likeliest
from trifold.generate.search import (
    DraftModel,
    Lookup,
    Steps,
    Watch,
    beam_search,
    constrained_beam_search,
    contrastive_search,
    drained,
    one_by_one,
    speculative,
)
from trifold.generate.search.finished import best_first
from trifold.generate.search.single import Step
from trifold.generate.search.speculative import Draft, check_draft
from trifold.generate.streaming import Speaker
from trifold.generate.words import spelled_out
from trifold.nn import Inputs

Ended = Callable[[list[Hypothesis]], None]


@torch.inference_mode()
def generate_tokens(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    numbers: Sequence[int] | None = None,
    on_step: Watch | None = None,
    codec: Codec | None = None,
    draft: Model | None = None,
) -> list[list[Hypothesis]]:
    """Write what follows each row of `inputs` (B, S): for each the `num_return_sequences` best outputs, best first.

    inputs: sources of an encoder-decoder, padded at the end, or prompts of a decoder, padded wherever `attend` says.
    numbers: who each row is when tokens are drawn at random (its place in the whole input, so that batching and
    sorting change nothing); 0, 1, … unless given. on_step: called with (tokens generated, sentences still open).
    codec: the tokenizer of the outputs, where words or stop strings are given as text. draft: a smaller model of the
    same vocabulary that speculates; the tokens stay the same. A beam search may give fewer outputs where fewer exist.
    Raises DataError for a row with no tokens or too many, UsageError for what does not go together.
    """
    rows = inputs.tokens.shape[0]
    numbers = _checked_numbers(numbers, rows)
    if not rows:
        return []
    config = spelled_out(config, codec, model.config)
    with at_rest(model):
        if config.num_beams > 1:
            _refuse_draft(config, draft)
            search = beam_search if config.force_words_ids is None else constrained_beam_search
            process, ends = processor(config, model.config, codec), _ends(model, config, codec)
            found = search(Live(model, inputs, config), config, process, ends, on_step)
            return [outputs[: config.num_return_sequences] for outputs in found]
        each = config.num_return_sequences
        flat = drained(_single(model, inputs, config, numbers, on_step, codec, draft))
        return [best_first(flat[start : start + each]) for start in range(0, len(flat), each)]


@torch.inference_mode()
def stream_tokens(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    numbers: Sequence[int] | None = None,
    codec: Codec | None = None,
    draft: Model | None = None,
    on_end: Ended | None = None,
) -> Iterator[tuple[int, int]]:
    """(row, token) as soon as each is known, without end tokens; arguments are those of `generate_tokens`.

    on_end: hears the outputs, one a row, when all are done.

    Raises UsageError for a beam search, which knows its words only when it is done, and for several outputs a row.
    """
    for name in ("num_beams", "num_return_sequences"):
        if getattr(config, name) > 1:
            raise UsageError(
                f"{name} {getattr(config, name)}: only one output a row can be streamed; set it to 1"
            )
    numbers = _checked_numbers(numbers, inputs.tokens.shape[0])
    config = spelled_out(config, codec, model.config)
    ends = set(end_ids(config, model.config))
    if not len(numbers):
        return
    with at_rest(model):
        steps = _heard(_single(model, inputs, config, numbers, None, codec, draft), on_end)
        for step in steps:
            for row, token in zip(step.sentences.tolist(), step.tokens.tolist(), strict=True):
                if token not in ends:
                    yield row, token


def stream_text(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    codec: Codec,
    *,
    numbers: Sequence[int] | None = None,
    draft: Model | None = None,
    on_end: Ended | None = None,
) -> Iterator[tuple[int, str]]:
    """(row, text) in whole characters as soon as they are known; a stop string and what follows it are left out."""
    speakers = [Speaker(codec, config.stop_strings or ()) for _ in inputs.tokens]
    tokens = stream_tokens(model, inputs, config, numbers=numbers, codec=codec, draft=draft, on_end=on_end)
    for row, token in tokens:
        if said := speakers[row].push(token):
            yield row, said
    for row, speaker in enumerate(speakers):
        if said := speaker.finish():
            yield row, said


def _heard(steps: Steps, on_end: Ended | None) -> Iterator[Step]:
    """The steps of a search, and then its outputs for who wants to hear them."""
    outputs = yield from steps
    if on_end is not None:
        on_end(outputs)


def _single(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    numbers: Sequence[int],
    on_step: Watch | None,
    codec: Codec | None,
    draft: Model | None,
) -> Steps:
    """The searches that write one output a row: `num_return_sequences` copies of each row stand together."""
    process, ends = processor(config, model.config, codec), _ends(model, config, codec)
    if config.penalty_alpha is not None:
        _refuse_draft(config, draft)
        return (yield from contrastive_search(Live(model, inputs, config), config, process, ends, on_step))
    if draft is not None or config.prompt_lookup_num_tokens is not None:
        return (yield from _speculated(model, inputs, config, numbers, on_step, process, ends, draft))
    live = Live(model, inputs, config)
    choose: Sampler = likeliest
    if config.samples:
        each = config.num_return_sequences
        live.copy(each)
        keys = [(number, sample) for number in numbers for sample in range(each)]
        choose = drawn(config, keys, int(live.limits.max()), live.logits.device)
    return (yield from one_by_one(live, config, process, choose, ends, on_step))


def _speculated(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    numbers: Sequence[int],
    on_step: Watch | None,
    process: Processor,
    ends: Ends,
    draft: Model | None,
) -> Steps:
    """Row after row, sample after sample."""
    if draft is not None:
        check_draft(model, draft)
        if config.prompt_lookup_num_tokens is not None:
            raise UsageError(
                "a draft model and prompt_lookup_num_tokens would both propose tokens: leave one of them out"
            )
    outputs: list[Hypothesis] = []
    for row, number in enumerate(numbers):
        alone = _alone(inputs, row)
        for sample in range(config.num_return_sequences):
            live = Live(model, alone, config)
            choose: Sampler = likeliest
            if config.samples:
                choose = drawn(config, [(number, sample)], int(live.limits.max()), live.logits.device)
            proposer: Draft
            if draft is not None:
                limit = int(live.limits[0])
                proposer = DraftModel(draft, alone, config, process, choose, ends, live.sentences, limit)
                count = config.num_assistant_tokens
            else:
                shared = live.memory is not None and model.config.target_vocab_size is None
                before = [*(alone.tokens[0].tolist() if shared else []), *live.tokens[0].tolist()]
                proposer = Lookup(before, config.max_matching_ngram_size or 2)
                count = config.prompt_lookup_num_tokens or 0
            steps = speculative(live, proposer, count, config, process, choose, ends, on_step)
            outputs += yield from _numbered(steps, row)
    return outputs


def _numbered(steps: Steps, row: int) -> Steps:
    """The same, of sentence `row` instead of 0."""
    while True:
        try:
            step = next(steps)
        except StopIteration as done:
            outputs: list[Hypothesis] = done.value
            return outputs
        yield Step(step.sentences + row, step.tokens)


def _alone(inputs: Inputs, row: int) -> Inputs:
    """One row without its padding."""
    tokens = inputs.tokens[row]
    return Inputs((tokens if inputs.attend is None else tokens[inputs.attend[row]])[None])


def _ends(model: Model, config: GenerationConfig, codec: Codec | None) -> Ends:
    return Ends(
        end_ids(config, model.config),
        config.stop_strings or (),
        codec,
        cut_off=config.forced_eos_token_id is not None,
    )


def _checked_numbers(numbers: Sequence[int] | None, rows: int) -> Sequence[int]:
    numbers = range(rows) if numbers is None else numbers
    if len(numbers) != rows:
        raise UsageError(f"numbers has {len(numbers)} entries for {rows} rows of inputs: give one a row")
    return numbers


def _refuse_draft(config: GenerationConfig, draft: Model | None) -> None:
    if draft is not None:
        way = "beam search" if config.num_beams > 1 else "contrastive search"
        raise UsageError(f"a {way} cannot use a draft model: leave out the draft, or search greedily")
