"""GenerationConfig: how logits become tokens, as plain values.

Field names are those of the Hugging Face generation_config.json where it has them. The options of
`trifold generate` and the keywords of `Pipeline.generate` are derived from these fields. `resolve`
applies the precedence: argument > generation_config.json > default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, field_validator, model_validator

from trifold.settings import Settings

if TYPE_CHECKING:
    from trifold.nn import ModelConfig

Id = Annotated[int, Field(ge=0)]
Phrase = Annotated[list[Id], Field(min_length=1)]
Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
# Ranges in which logits, which are 32-bit floats, neither overflow nor vanish.
SMALLEST = 1e-30
LARGEST = 1e30
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]
Bounded = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Function = TypeVar("Function", bound=Callable[..., Any])

# Plus the tokens of the source, for an encoder-decoder and for a decoder with a prompt.
DEFAULT_MAX_NEW_TOKENS = 50
SAMPLING = ("temperature", "top_k", "top_k_form", "top_p", "min_p", "typical_p")
BEAMS = (
    *("num_beams", "length_penalty", "length_penalty_form", "early_stopping", "renormalize_logits"),
    *("num_beam_groups", "diversity_penalty", "force_words", "force_words_ids"),
)
CONTRASTIVE = ("penalty_alpha", "top_k")
LOOKUP = ("prompt_lookup_num_tokens", "max_matching_ngram_size")


class GenerationConfig(Settings):
    """Greedy by default.

    `num_beams` selects beam search; temperature, top_k, top_p, min_p or typical_p selects sampling;
    `penalty_alpha` selects contrastive search; `prompt_lookup_num_tokens` makes greedy decoding and
    sampling speculative.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    max_new_tokens: int | None = Field(None, gt=0)
    """maximum new tokens; default: 50, plus the source length unless a text is continued"""
    min_new_tokens: int | None = Field(None, ge=0, description="minimum number of new tokens")
    max_length: int | None = Field(
        None, gt=0, description="maximum length, prompt or start token included"
    )
    min_length: int | None = Field(
        None, ge=0, description="minimum length, prompt or start token included"
    )
    stop_strings: Words | None = Field(
        None, description="end the output before any of these strings"
    )
    eos_token_id: Id | Phrase | None = Field(
        None, description="ids that end an output; default: the model's"
    )

    num_beams: int = Field(1, gt=0, description="number of beams; 1 disables beam search")
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """exponent α of the length; larger favours longer outputs"""
    length_penalty_form: Literal["power", "gnmt"] = "power"
    """score / n^α, or score / ((5 + n) / 6)^α (Wu et al. 2016, equation 14)"""
    early_stopping: bool | Literal["never"] = Field(
        False,
        description="when beam search stops: with num_beams finished outputs (true), when a "
        "better output is unlikely (false) or impossible (never)",
    )
    renormalize_logits: bool = Field(
        False, description="beams: renormalize probabilities of allowed tokens"
    )
    num_beam_groups: int = Field(
        1, gt=0, description="groups of beams that avoid each other's tokens"
    )
    diversity_penalty: Positive | None = None
    """penalty for a token for each beam of an earlier group that just chose it"""
    force_words_ids: list[Phrase | Annotated[list[Phrase], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="phrases that must appear, as ids; a list of phrases: any one of them",
    )
    force_words: Words | None = Field(
        None, description="phrases that must appear, as text (beam search)"
    )

    do_sample: bool | None = None
    """sample; default: whether temperature, top_k, top_p, min_p or typical_p is set"""
    temperature: Positive | None = None
    """sampling temperature; below 1 favours likely tokens"""
    top_k: int | None = Field(None, gt=0, description="sample among the k most likely tokens")
    top_k_form: Literal["proportional", "uniform"] = "proportional"
    """draw from the top k by probability, or uniformly"""
    top_p: float | None = Field(None, ge=SMALLEST, le=1)
    """sample among the fewest tokens whose probabilities reach this sum"""
    min_p: float | None = Field(None, ge=0, le=1)
    """sample among tokens of at least this share of the highest probability"""
    typical_p: Share | None = None
    """sample among the most typical tokens whose probabilities reach this sum"""
    seed: int | None = Field(
        None, ge=0, lt=2**64, description="random seed of samples; default: a new one each call"
    )

    penalty_alpha: Share | None = None
    """contrastive search: weight of the penalty for similarity to earlier tokens"""
    prompt_lookup_num_tokens: int | None = Field(None, gt=0)
    """speculate with this many tokens that followed the same n-gram earlier"""
    max_matching_ngram_size: int | None = Field(None, gt=0)
    """prompt lookup: longest n-gram; default: 2"""
    num_assistant_tokens: int = Field(5, gt=0)
    """tokens that a draft model proposes at a time; default: 5"""

    repetition_penalty: Positive | None = None
    """above 1, tokens that already occurred become less likely"""
    presence_penalty: Bounded | None = None
    """subtracted from the logits of generated tokens"""
    frequency_penalty: Bounded | None = None
    """subtracted from the logit of a token for each time it was generated"""
    no_repeat_ngram_size: int | None = Field(
        None, gt=0, description="no n-gram of this size occurs twice"
    )
    encoder_no_repeat_ngram_size: int | None = Field(None, gt=0)
    """no n-gram of this size of the source, or of the prompt of a decoder, is generated"""
    bad_words_ids: list[Phrase] | None = None
    """phrases that are never generated, as ids; default: padding only"""
    bad_words: Words | None = Field(
        None, description="texts that no output contains, however tokenized"
    )
    forced_bos_token_id: Id | None = None
    """id of the token after the start token, or after a prompt of one token"""
    forced_eos_token_id: Id | Phrase | None = None
    """last token of an output that reaches its maximum length"""
    suppress_tokens: list[Id] | None = None
    """ids that are never generated, end tokens too"""
    begin_suppress_tokens: list[Id] | None = None
    """ids that are not the first token of an output, or the first after forced_bos_token_id"""

    prompt: str | None = Field(None, min_length=1)
    """template that a text is put into, such as "{source} TL;DR:"; default: that of the training"""

    source_language: str | None = None
    """language of the text, as in the tokenizer (eng_Latn, en_XX, en); default: the tokenizer's"""
    target_language: str | None = None
    """language of the output; its token replaces forced_bos_token_id"""
    parse_special: bool | None = None
    """parse special tokens in the text, such as a mask; default: as transformers does"""

    num_return_sequences: int = Field(
        1, gt=0, description="number of outputs for each input, best first"
    )
    prefill_chunk_size: int | None = Field(None, gt=0)
    """read prompts in chunks of this many tokens to save memory; default: at once"""
    cache: Literal["growing", "static", "sliding"] | None = Field(
        None,
        description="key/value cache: grows as needed, is allocated at once, or keeps only the "
        "attention windows; default: by model and length",
    )

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are drawn at random."""
        return bool(self.do_sample) or (self.do_sample is None and bool(self.sampling_keys))

    @property
    def sampling_keys(self) -> list[str]:
        """The settings that select sampling; top_k of a contrastive search does not."""
        others = {"top_k_form"}
        if self.penalty_alpha is not None:
            others.add("top_k")
        return [key for key in SAMPLING if getattr(self, key) is not None and key not in others]

    @field_validator("temperature", mode="before")
    @classmethod
    def _check_temperature(cls, value: object) -> object:
        if isinstance(value, (int, float)) and 0 <= value < SMALLEST:
            remedy = "for greedy decoding, leave it out and set do_sample to false"
            raise ValueError(f"{value} is below {SMALLEST:g}; {remedy}")
        return value

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, value: object) -> object:
        if value is None:
            return None
        from trifold.text.prompts import Prompt  # most commands read no text

        return Prompt.parse(value).text

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        conflicts = (conflict for find in _CONFLICTS for conflict in find(self))
        conflict = next(conflicts, None)
        if conflict is not None:
            raise ValueError(conflict)
        return self


def end_ids(config: GenerationConfig, model: ModelConfig) -> list[int]:
    """The ids that end an output; empty if the model's end id is outside its vocabulary."""
    ids = model.eos_id if config.eos_token_id is None else config.eos_token_id
    if isinstance(ids, int):
        ids = [ids]
    return [end for end in ids if end < model.output_vocab_size]


def with_generation_options(function: Function) -> Function:
    """Decorator: list the fields of GenerationConfig and `draft` in the signature and docstring of
    `function`.

    They replace its `**arguments`, through which they are passed.
    """
    signature = inspect.signature(function)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    lines = [inspect.getdoc(function) or "", "", "Options:"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    for name, field in GenerationConfig.model_fields.items():
        more = {"default": field.default, "annotation": field.annotation}
        parameters.append(inspect.Parameter(name, keyword, **more))
        lines.append(f"    {name}: {field.description}")
    parameters.append(inspect.Parameter("draft", keyword, default=None))
    lines.append("    draft: smaller model for speculative decoding")
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = "\n".join(lines)
    return function


# --- precedence -----------------------------------------------------------------------------------

# Arguments that select a decoding strategy -> stored settings that they override; the first match
# counts.
_STRATEGIES: tuple[tuple[Callable[[Mapping[str, Any]], bool], tuple[str, ...]], ...] = (
    (
        lambda given: given.get("penalty_alpha") is not None,
        (*BEAMS, *SAMPLING, *LOOKUP, "do_sample"),
    ),
    (
        lambda given: (
            given.get("do_sample") is True or any(given.get(key) is not None for key in SAMPLING)
        ),
        (*BEAMS, *CONTRASTIVE, "do_sample"),
    ),
    (lambda given: given.get("do_sample") is False, ("do_sample", *SAMPLING, *CONTRASTIVE)),
    (lambda given: given.get("num_beams") == 1, BEAMS),
    (
        lambda given: isinstance(beams := given.get("num_beams"), int) and beams > 1,
        ("do_sample", *SAMPLING, *CONTRASTIVE, *LOOKUP),
    ),
    (lambda given: given.get("prompt_lookup_num_tokens") is not None, (*BEAMS, *CONTRASTIVE)),
)
# An argument overrides every stored setting of its group.
_ALTERNATIVES = (
    ("max_new_tokens", "max_length"),
    ("min_new_tokens", "min_length"),
    ("bad_words", "bad_words_ids"),
    ("force_words", "force_words_ids"),
    ("target_language", "forced_bos_token_id"),
)


def resolve(
    stored: Mapping[str, Any] | GenerationConfig, given: Mapping[str, Any]
) -> GenerationConfig:
    """Combine the arguments `given` with the settings `stored` with a model; arguments take
    precedence.

    An argument that selects a strategy drops the stored settings of the others: sampling drops beam
    settings, beams (or do_sample false) drop sampling settings. Raises SettingsError for unknown
    keys, wrong types and contradictions.
    """
    if isinstance(stored, GenerationConfig):
        stored = stored.model_dump(exclude_unset=True)
    dropped: tuple[str, ...] = next((keys for selects, keys in _STRATEGIES if selects(given)), ())
    for group in _ALTERNATIVES:
        if any(given.get(key) is not None for key in group):
            dropped = (*dropped, *group)
    inherited = {key: value for key, value in stored.items() if key not in dropped}
    return GenerationConfig.parse({**inherited, **given})


# --- contradictions -------------------------------------------------------------------------------


def _sampling_conflicts(config: GenerationConfig) -> Iterator[str]:
    if config.do_sample is False and (keys := config.sampling_keys):
        remedy = f"leave out {keys[0]}, or set do_sample to true"
        yield _contradiction(_value(config, keys[0]), "do_sample false", remedy)
    if config.is_sampling and config.num_beams > 1:
        remedy = "beam search does not sample; set num_beams to 1, or remove the sampling options"
        yield _contradiction(_value(config, "num_beams"), _sampling_setting(config), remedy)
    if not config.is_sampling and config.num_return_sequences > config.num_beams:
        count = _value(config, "num_return_sequences")
        beams = _value(config, "num_beams")
        yield f"{count} is more than {beams}: raise num_beams, or sample (do_sample true)"
    if config.top_k_form == "uniform" and config.top_k is None:
        yield "top_k_form uniform needs top_k: set top_k too"
    if config.top_k_form == "uniform" and config.temperature is not None:
        remedy = "temperature does not change uniform probabilities; leave one of them out"
        yield _contradiction(_value(config, "temperature"), "top_k_form uniform", remedy)


def _contrastive_conflicts(config: GenerationConfig) -> Iterator[str]:
    if config.penalty_alpha is None:
        return
    alpha = _value(config, "penalty_alpha")
    if config.top_k is None or config.top_k < 2:
        yield f"{alpha} (contrastive search) needs at least 2 candidates: set top_k to 2 or more"
    if config.is_sampling or config.top_k_form == "uniform":
        remedy = "contrastive search does not sample; leave one of them out"
        yield _contradiction(alpha, _sampling_setting(config), remedy)
    if config.num_beams > 1:
        remedy = "contrastive search has no beams; leave one of them out"
        yield _contradiction(alpha, _value(config, "num_beams"), remedy)


def _beam_conflicts(config: GenerationConfig) -> Iterator[str]:
    groups = config.num_beam_groups
    beams = config.num_beams
    penalty = config.diversity_penalty
    if beams % groups:
        yield (
            f"num_beam_groups {groups} does not divide num_beams {beams}: make num_beams a "
            "multiple of it"
        )
    if groups > 1 and penalty is None:
        yield (
            f"num_beam_groups {groups} without a penalty find equal outputs: set diversity_penalty"
        )
    if groups == 1 and penalty is not None:
        yield f"diversity_penalty {penalty} needs groups of beams: set num_beam_groups to 2 or more"
    forced = [key for key in ("force_words", "force_words_ids") if getattr(config, key) is not None]
    if forced and beams == 1:
        yield f"{forced[0]} needs a beam search: set num_beams to 2 or more"
    if forced and groups > 1:
        yield _contradiction(forced[0], _value(config, "num_beam_groups"), "leave one of them out")


def _lookup_conflicts(config: GenerationConfig) -> Iterator[str]:
    lookup, ngram = (_value(config, key) for key in LOOKUP)
    if config.prompt_lookup_num_tokens is None:
        if config.max_matching_ngram_size is not None:
            yield f"{ngram} is an option of the prompt lookup: set prompt_lookup_num_tokens too"
        return
    for key, neutral in (("num_beams", 1), ("penalty_alpha", None)):
        if getattr(config, key) != neutral:
            remedy = (
                "speculation works with greedy decoding and sampling only; leave one of them out"
            )
            yield _contradiction(lookup, _value(config, key), remedy)


def _length_conflicts(config: GenerationConfig) -> Iterator[str]:
    for minimum, maximum in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
        low = getattr(config, minimum)
        high = getattr(config, maximum)
        if high is not None and (low or 0) > high:
            yield (
                f"{minimum} {low} is more than {maximum} {high}: lower the first or raise the "
                "second"
            )
    for new, total in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if getattr(config, new) is not None and getattr(config, total) is not None:
            both = f"{_value(config, new)} and {_value(config, total)}"
            yield f"{both} limit the same length: leave out {total}, which includes the prompt"


def _repeated_phrase_conflicts(config: GenerationConfig) -> Iterator[str]:
    for text, ids in (("bad_words", "bad_words_ids"), ("force_words", "force_words_ids")):
        if getattr(config, text) is not None and getattr(config, ids):
            yield f"{text} and {ids} are both set: use one of them for all phrases"


def _language_conflicts(config: GenerationConfig) -> Iterator[str]:
    if config.target_language is not None and config.forced_bos_token_id is not None:
        language = _value(config, "target_language")
        first = _value(config, "forced_bos_token_id")
        yield _contradiction(language, first, "both set the first token; leave one of them out")


def _forbidden_phrase_conflicts(config: GenerationConfig) -> Iterator[str]:
    """Phrases of ids that must appear, of which every alternative contains a forbidden one."""
    forbidden = {tuple(phrase) for phrase in config.bad_words_ids or ()}
    for required in config.force_words_ids or ():
        alternatives: list[Any] = required if isinstance(required[0], list) else [required]
        forbidden_parts = [
            next((part for part in forbidden if _contains(phrase, part)), None)
            for phrase in alternatives
        ]
        first = forbidden_parts[0]
        if first is not None and all(forbidden_parts):
            yield (
                f"{alternatives[0]} is in force_words_ids, but bad_words_ids forbids "
                f"{list(first)}: remove one of them"
            )


def _forbidden_word_conflicts(config: GenerationConfig) -> Iterator[str]:
    for word in config.force_words or ():
        if any(forbidden in word for forbidden in config.bad_words or ()):
            yield (
                f"{word!r} is in force_words, but bad_words forbids it: remove it from one of them"
            )


def _contains(phrase: Any, part: tuple[int, ...]) -> bool:
    return any(tuple(phrase[i : i + len(part)]) == part for i in range(len(phrase) - len(part) + 1))


# In the order in which they are reported.
_CONFLICTS: tuple[Callable[[GenerationConfig], Iterator[str]], ...] = (
    _sampling_conflicts,
    _contrastive_conflicts,
    _beam_conflicts,
    _lookup_conflicts,
    _length_conflicts,
    _repeated_phrase_conflicts,
    _language_conflicts,
    _forbidden_phrase_conflicts,
    _forbidden_word_conflicts,
)


def _contradiction(one: str, other: str, remedy: str) -> str:
    return f"{one} and {other} contradict each other: {remedy}"


def _value(config: GenerationConfig, key: str) -> str:
    return f"{key} {getattr(config, key)}"


def _sampling_setting(config: GenerationConfig) -> str:
    if config.sampling_keys:
        return _value(config, config.sampling_keys[0])
    if config.is_sampling:
        return "do_sample true"
    return _value(config, "top_k_form")
