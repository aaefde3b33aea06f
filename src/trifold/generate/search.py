"""Entry point: settings select a search, the search runs, and outputs are returned for each row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.beam_search import beam_search, best_first
from trifold.generate.constrained_beam_search import constrained_beam_search
from trifold.generate.decoding import (
    DecodingState,
    Model,
    SearchHook,
    SearchSetup,
    StepCallback,
    eval_mode,
)
from trifold.generate.processors import Context, processor
from trifold.generate.query_stream import as_writer
from trifold.generate.sampling import Sampler, greedy, sampler
from trifold.generate.speculative import (
    Proposer,
    check_draft,
    draft_proposer,
    look_up,
    speculative_search,
)
from trifold.generate.stopping import Codec, Hypothesis, StoppingCriteria
from trifold.generate.streaming import TextStreamer
from trifold.generate.token_search import SearchStep, contrastive_search, token_search
from trifold.generation_config import GenerationConfig, end_ids
from trifold.nn import Inputs, ModelConfig
from trifold.nn.parts import AttentionPart, part_of
from trifold.text.languages import language_id

TEXT_SETTINGS = ("bad_words", "force_words", "stop_strings", "target_language")
ID_SETTINGS = (
    *("bad_words_ids", "force_words_ids", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)

EndCallback = Callable[[list[Hypothesis]], None]


@torch.inference_mode()
def generate_tokens(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    numbers: Sequence[int] | None = None,
    on_step: StepCallback | None = None,
    codec: Codec | None = None,
    draft: Model | None = None,
    hook: SearchHook | None = None,
    has_scores: bool = True,
) -> list[list[Hypothesis]]:
    """Generate the `num_return_sequences` best outputs for each row of `inputs` (B, S), best first.

    inputs: sources of an encoder-decoder, padded at the end, or prompts of a decoder, padded
    anywhere. numbers: index of each row in the whole input (default: 0, 1, …); random numbers
    depend on it, so batching and sorting do not change what is drawn. on_step: called with (tokens
    generated, unfinished sentences). codec: tokenizer of the outputs, for words and stop strings
    given as text. draft: a smaller model with the same vocabulary for speculative decoding; the
    tokens stay the same. hook: see SearchHook. has_scores: False to save the time of scores where
    no search compares them; they are NaN then. Beam search may find fewer outputs if fewer exist.
    Raises DataError for an empty or too long row, UsageError for incompatible arguments.
    """
    numbers = _check_numbers(numbers, inputs)
    if not numbers:
        return []
    setup = _setup(model, config, codec)
    # Of several outputs the best ones come first.
    setup = setup._replace(has_scores=has_scores or setup.config.num_return_sequences > 1)
    if on_step is not None:
        setup = setup._replace(on_step=on_step)
    if hook is not None:
        process = setup.process

        def hooked_process(logits: Tensor, context: Context) -> Tensor:
            # A copy, because processors work in place: the hook reads the model's logits in the
            # state.
            return hook.process(process(logits.clone(), context), context)

        setup = setup._replace(hook=hook, process=hooked_process)
    config = setup.config
    with eval_mode(model):
        model = as_writer(model, config, draft)
        if config.num_beams > 1:
            _refuse_draft(config, draft)
            search = beam_search if config.force_words_ids is None else constrained_beam_search
            found = search(DecodingState(model, inputs, config), setup)
            return [outputs[: config.num_return_sequences] for outputs in found]
        samples = config.num_return_sequences
        ended: dict[int, Hypothesis] = {}
        for step in _search_without_beams(model, inputs, setup, numbers, draft):
            ended |= step.ended
        return [
            best_first([ended[first + sample] for sample in range(samples)])
            for first in range(0, len(ended), samples)
        ]


@torch.inference_mode()
def stream_tokens(
    model: Model,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    numbers: Sequence[int] | None = None,
    codec: Codec | None = None,
    draft: Model | None = None,
    on_end: EndCallback | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield (row, token) as each is generated, without end tokens; arguments are those of
    `generate_tokens`.

    on_end: called with the outputs, one per row, after the last token. Raises UsageError for beam
    search, which knows its tokens only at the end, and for several outputs per row.
    """
    for name in ("num_beams", "num_return_sequences"):
        if (value := getattr(config, name)) > 1:
            raise UsageError(
                f"{name} {value}: only one output per row can be streamed; set it to 1"
            )
    setup = _setup(model, config, codec)
    numbers = _check_numbers(numbers, inputs)
    if not numbers:
        return
    ended: dict[int, Hypothesis] = {}
    with eval_mode(model):
        model = as_writer(model, setup.config, draft)
        for step in _search_without_beams(model, inputs, setup, numbers, draft):
            ended |= step.ended
            for row, token in zip(step.sentences.tolist(), step.tokens.tolist(), strict=True):
                if token not in setup.stopping.ids:
                    yield row, token
    if on_end is not None:
        on_end([ended[row] for row in range(len(numbers))])


def stream_text(
    model: Model, inputs: Inputs, config: GenerationConfig, codec: Codec, **options: Any
) -> Iterator[tuple[int, str]]:
    """Yield (row, text) in whole characters as they are generated, up to the first stop string.

    options: those of `stream_tokens`.
    """
    streamers = [TextStreamer(codec, config.stop_strings or ()) for _ in inputs.tokens]
    for row, token in stream_tokens(model, inputs, config, codec=codec, **options):
        if text := streamers[row].push(token):
            yield row, text
    for row, streamer in enumerate(streamers):
        if text := streamer.finish():
            yield row, text


def _check_numbers(numbers: Sequence[int] | None, inputs: Inputs) -> Sequence[int]:
    rows = inputs.tokens.shape[0]
    if numbers is not None and len(numbers) != rows:
        raise UsageError(
            f"numbers has {len(numbers)} entries for {rows} rows of inputs: pass one per row"
        )
    return range(rows) if numbers is None else numbers


def _setup(model: Model, config: GenerationConfig, codec: Codec | None) -> SearchSetup:
    config = _encode_words(config, codec, model.config)
    ends = end_ids(config, model.config)
    strings = config.stop_strings or ()
    forced_eos = config.forced_eos_token_id is not None
    stopping = StoppingCriteria(ends, strings, codec, forced_eos=forced_eos)
    return SearchSetup(config, processor(config, model.config, codec), stopping)


def _search_without_beams(
    model: Model, inputs: Inputs, setup: SearchSetup, numbers: Sequence[int], draft: Model | None
) -> Iterator[SearchStep]:
    """The searches that keep one row per output; the `num_return_sequences` copies of an input are
    adjacent.
    """
    config = setup.config
    if config.penalty_alpha is not None:
        _refuse_draft(config, draft)
        return contrastive_search(DecodingState(model, inputs, config), setup)
    if draft is not None or config.prompt_lookup_num_tokens is not None:
        return _speculate(model, inputs, setup, numbers, draft)
    state = DecodingState(model, inputs, config)
    if not config.is_sampling:
        return token_search(state, setup, greedy)
    samples = config.num_return_sequences
    state.copy(samples)
    keys = [(number, sample) for number in numbers for sample in range(samples)]
    return token_search(
        state, setup, sampler(config, keys, int(state.limits.max()), state.logits.device)
    )


def _speculate(
    model: Model, inputs: Inputs, setup: SearchSetup, numbers: Sequence[int], draft: Model | None
) -> Iterator[SearchStep]:
    """Speculative decoding, one row and one sample after the other.

    Raises UsageError if a cache cannot remove tokens, or for two sources of proposals.
    """
    _check_proposals(model, setup.config, draft)
    samples = setup.config.num_return_sequences
    for row, number in enumerate(numbers):
        single = _row_of(inputs, row)
        for sample in range(samples):
            sentence = row * samples + sample  # which is sentence 0 of its own search
            for step in _speculate_one(model, single, setup, (number, sample), draft):
                ended = {sentence: step.ended[0]} if step.ended else {}
                yield SearchStep(step.sentences + sentence, step.tokens, ended)


def _check_proposals(model: Model, config: GenerationConfig, draft: Model | None) -> None:
    for each in (model, draft or model):
        attention = part_of(AttentionPart, each.config)
        if not attention.can_truncate:
            option = "prompt_lookup_num_tokens" if draft is None else "draft"
            kind = attention.value or attention.key
            raise UsageError(
                f"{option}: attention {kind} cannot remove tokens from its cache; omit it"
            )
    if draft is None:
        return
    check_draft(model, draft)
    if config.prompt_lookup_num_tokens is not None:
        raise UsageError(
            "a draft model and prompt_lookup_num_tokens would both propose tokens: leave "
            "one of them out"
        )


def _row_of(inputs: Inputs, row: int) -> Inputs:
    """One row without padding."""
    tokens = inputs.tokens[row]
    if inputs.attend is not None:
        tokens = tokens[inputs.attend[row]]
    return Inputs(tokens[None])


def _speculate_one(
    model: Model, inputs: Inputs, setup: SearchSetup, key: tuple[int, int], draft: Model | None
) -> Iterator[SearchStep]:
    """Speculative decoding of one row; key: its number and that of the sample."""
    config = setup.config
    state = DecodingState(model, inputs, config)
    limit = int(state.limits[0])
    choose: Sampler = greedy
    if config.is_sampling:
        choose = sampler(config, [key], limit, state.logits.device)
    propose: Proposer
    if draft is not None:
        propose = draft_proposer(draft, inputs, setup, choose, state.sentences, limit)
        count = config.num_assistant_tokens
    else:
        prompt = state.tokens[0].tolist()
        if state.memory is not None and model.config.target_vocab_size is None:
            # Both sides share a vocabulary, so proposals may come from the source.
            prompt = [*inputs.tokens[0].tolist(), *prompt]
        propose = partial(look_up, prompt, config.max_matching_ngram_size or 2)
        count = config.prompt_lookup_num_tokens or 0
    return speculative_search(state, setup, choose, propose, count)


def _refuse_draft(config: GenerationConfig, draft: Model | None) -> None:
    if draft is not None:
        strategy = "beam search" if config.num_beams > 1 else "contrastive search"
        raise UsageError(
            f"{strategy} cannot use a draft model: leave out the draft, or use greedy decoding"
        )


def has_texts(config: GenerationConfig) -> bool:
    """Whether settings are texts, which need a tokenizer."""
    return any(getattr(config, key) is not None for key in TEXT_SETTINGS)


def _encode_words(
    config: GenerationConfig, codec: Codec | None, model: ModelConfig
) -> GenerationConfig:
    """Replace force_words by the ids of each word at the start of a text and after a space, and
    target_language by the first token.

    Raises UsageError for ids outside the vocabulary, for ids that are other tokens in sources than
    in outputs, for words without a tokenizer or without tokens, and for an unknown language.
    """
    for key in ID_SETTINGS:
        _require_ids(key, _flatten(getattr(config, key)), model)
    if config.encoder_no_repeat_ngram_size is not None and model.target_vocab_size is not None:
        raise UsageError(
            "encoder_no_repeat_ngram_size: sources and outputs of this model have different "
            "vocabularies; leave it out"
        )
    given = [key for key in TEXT_SETTINGS if getattr(config, key) is not None]
    if not given:
        return config
    if codec is None:
        raise UsageError(f"{given[0]} is text: pass the tokenizer too, or ids")
    if config.target_language is not None:
        config = _set_language(config, config.target_language, codec, model)
    if config.force_words is None:
        return config
    phrases = []
    for word in config.force_words:
        encoded = [ids for ids in codec.encode([word, f" {word}"]) if ids]
        if not encoded:
            raise UsageError(f"{word!r} has no tokens: use another word")
        phrases.append([ids for index, ids in enumerate(encoded) if ids not in encoded[:index]])
    return config.model_copy(update={"force_words_ids": phrases, "force_words": None})


def _set_language(
    config: GenerationConfig, code: str, codec: Codec, model: ModelConfig
) -> GenerationConfig:
    """The first token of outputs in this language. An output may also begin with one: then there is
    no choice.
    """
    language = language_id("target_language", code, codec.languages)
    _require_ids(f"target_language {code}", [language], model)
    only = next(
        (known for known, number in codec.languages.items() if number == model.start_id), code
    )
    if only != code:
        raise UsageError(
            f"target_language: {code!r}, but this model writes {only} only (decoder_start_id)"
        )
    first = None if language == model.start_id else language
    return config.model_copy(update={"forced_bos_token_id": first, "target_language": None})


def _require_ids(key: str, ids: Iterable[int], model: ModelConfig) -> None:
    """Raises UsageError for an id that the model cannot write."""
    wrong = next((token for token in ids if token >= model.output_vocab_size), None)
    if wrong is not None:
        raise UsageError(
            f"{key}: {wrong} is not a token id; the vocabulary has "
            f"{model.output_vocab_size:,} tokens (from 0)"
        )


def _flatten(ids: object) -> Iterator[int]:
    if isinstance(ids, int):
        yield ids
    elif isinstance(ids, list):
        for each in ids:
            yield from _flatten(each)
