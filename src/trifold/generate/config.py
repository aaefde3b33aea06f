"""GenerationConfig: how logits become tokens, as plain values.

Names are those of the ecosystem's generation_config.json, where it has one. Precedence is argument > stored with the
model (generation_config.json) > default; `resolve` applies it. `contradictions` says what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trifold.generate.contradictions import contradiction
from trifold.nn import ModelConfig
from trifold.settings import Settings

Id = Annotated[int, Field(ge=0)]
Phrase = Annotated[list[Id], Field(min_length=1)]
Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]

LONGEST = (
    50  # tokens of an output where nobody says; an encoder-decoder gets as many as its source has on top
)
SAMPLING = ("temperature", "top_k", "top_k_form", "top_p", "min_p", "typical_p")
BEAMS = (
    *("num_beams", "length_penalty", "length_penalty_form", "early_stopping", "renormalize_logits"),
    "num_beam_groups",
    *("diversity_penalty", "force_words", "force_words_ids"),
)
CONTRASTIVE = ("penalty_alpha", "top_k")
LOOKUP = ("prompt_lookup_num_tokens", "max_matching_ngram_size")


class GenerationConfig(Settings):
    """Greedy by default.

    `num_beams` makes it a beam search; a temperature, top_k, top_p, min_p or typical_p makes it sampling;
    `penalty_alpha` a contrastive search; `prompt_lookup_num_tokens` makes greedy and sampling speculative.
    """

    max_new_tokens: int | None = Field(
        None, gt=0, description="longest output; None: tokens of the source + 50 (a decoder: 50)"
    )
    min_new_tokens: int | None = Field(None, ge=0, description="no end before so many tokens")
    max_length: int | None = Field(None, gt=0, description="longest output, prompt or start token included")
    min_length: int | None = Field(None, ge=0, description="no end before so many, prompt included")
    stop_strings: Words | None = Field(None, description="an output ends where its text holds one of these")
    eos_token_id: Id | Phrase | None = Field(None, description="ids that end an output; None: the model's")

    num_beams: int = Field(1, gt=0)
    length_penalty: float = Field(1.0, description="the exponent α below; larger favours longer outputs")
    length_penalty_form: Literal["power", "gnmt"] = Field(
        "power", description="score / n^α, or score / ((5 + n) / 6)^α (Wu et al. 2016, equation 14)"
    )
    early_stopping: bool | Literal["never"] = Field(
        False,
        description="true: stop at num_beams finished outputs; false: when going on looks useless; "
        "never: when going on is proved useless",
    )
    renormalize_logits: bool = Field(
        False, description="what is forbidden makes the other continuations of a beam likelier"
    )
    num_beam_groups: int = Field(
        1, gt=0, description="groups of beams that keep away from each other's tokens"
    )
    diversity_penalty: float | None = Field(
        None, gt=0, description="off a token's score for each earlier group that just took it"
    )
    force_words_ids: list[Phrase | Annotated[list[Phrase], Field(min_length=1)]] | None = Field(
        None, min_length=1, description="phrases that must appear, as ids; a list of phrases: one of them"
    )
    force_words: Words | None = Field(None, description="phrases that must appear, as text")

    do_sample: bool | None = Field(None, description="None: whether one of temperature … typical_p is given")
    temperature: float | None = None
    top_k: int | None = Field(None, gt=0, description="choose among the k likeliest tokens")
    top_k_form: Literal["proportional", "uniform"] = Field(
        "proportional", description="by their probabilities, or all k alike"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="… the fewest that hold this much probability")
    min_p: float | None = Field(
        None, ge=0, le=1, description="… those with this share of the likeliest one's"
    )
    typical_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="… the fewest that hold this much, those of the most usual surprise first",
    )
    seed: int | None = Field(None, ge=0, description="of sampling; None: a new one each time")

    penalty_alpha: float | None = Field(
        None, gt=0, le=1, description="contrastive search: weight of not resembling what is written"
    )
    prompt_lookup_num_tokens: int | None = Field(
        None, gt=0, description="speculate by so many tokens that followed the same n-gram before"
    )
    max_matching_ngram_size: int | None = Field(
        None, gt=0, description="the longest n-gram looked for; None: 2"
    )
    num_assistant_tokens: int = Field(5, gt=0, description="tokens that a draft model writes ahead")

    repetition_penalty: float | None = Field(None, gt=0)
    presence_penalty: float | None = Field(None, description="off the logit of a token already generated")
    frequency_penalty: float | None = Field(None, description="… for each time it was generated")
    no_repeat_ngram_size: int | None = Field(None, gt=0)
    bad_words_ids: list[Phrase] | None = Field(
        None, description="phrases that are never written, as ids; None: padding only"
    )
    bad_words: Words | None = Field(
        None, description="… as text, in whatever tokens: no output holds it, not even within a word"
    )
    forced_bos_token_id: Id | None = Field(None, description="the first token")
    forced_eos_token_id: Id | Phrase | None = Field(None, description="the last one, where room runs out")

    num_return_sequences: int = Field(1, gt=0, description="outputs for each input, best first")
    prefill_chunk_size: int | None = Field(
        None, gt=0, description="tokens of a prompt read at once; None: all"
    )
    cache: Literal["growing", "static", "sliding"] | None = Field(
        None,
        description="room for keys and values: as it is needed, all of it at once, or only for what windows reach; "
        "None: what suits",
    )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        return bool(self.do_sample) or (self.do_sample is None and bool(self.sampling_keys))

    @property
    def sampling_keys(self) -> list[str]:
        """The settings that ask for sampling; in a contrastive search, top_k does not."""
        contrasts = self.penalty_alpha is not None
        return [
            key
            for key in SAMPLING
            if getattr(self, key) is not None and key != "top_k_form" and not (contrasts and key == "top_k")
        ]

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> Self:
        if said := contradiction(self):
            raise ValueError(said)
        return self


def end_ids(config: GenerationConfig, model: ModelConfig) -> list[int]:
    """The ids that end an output; none for a model whose end is an id that no token has."""
    ids = model.eos_id if config.eos_token_id is None else config.eos_token_id
    return [end for end in ([ids] if isinstance(ids, int) else ids) if end < model.output_vocab_size]


# How an argument asks for a way of generating -> what it then does not inherit.
_WAYS: tuple[tuple[Callable[[Mapping[str, Any]], bool], tuple[str, ...]], ...] = (
    (lambda asked: asked.get("penalty_alpha") is not None, (*BEAMS, *SAMPLING, *LOOKUP, "do_sample")),
    (
        lambda asked: asked.get("do_sample") is True or any(asked.get(key) is not None for key in SAMPLING),
        (*BEAMS, *CONTRASTIVE, "do_sample"),
    ),
    (lambda asked: asked.get("do_sample") is False, ("do_sample", *SAMPLING, *CONTRASTIVE)),
    (lambda asked: asked.get("num_beams") == 1, BEAMS),
    (
        lambda asked: _more_than_one(asked.get("num_beams")),
        ("do_sample", *SAMPLING, *CONTRASTIVE, *LOOKUP),
    ),
    (lambda asked: asked.get("prompt_lookup_num_tokens") is not None, (*BEAMS, *CONTRASTIVE)),
)
# Who gives one of these does not inherit the others.
_ONE_OF = (
    ("max_new_tokens", "max_length"),
    ("min_new_tokens", "min_length"),
    ("bad_words", "bad_words_ids"),
    ("force_words", "force_words_ids"),
)


def resolve(
    stored: Mapping[str, Any] | GenerationConfig, asked: Mapping[str, Any], at: str = ""
) -> GenerationConfig:
    """Argument > stored > default.

    Who asks for one way of searching does not inherit the settings of the other: asking for sampling drops the
    stored beam settings, asking for beams (or do_sample false) the stored sampling ones.
    Raises SettingsError for unknown keys, wrong types and contradictions.
    """
    if isinstance(stored, GenerationConfig):
        stored = stored.model_dump(exclude_unset=True)
    dropped: tuple[str, ...] = next((keys for wants, keys in _WAYS if wants(asked)), ())
    for group in _ONE_OF:
        if any(asked.get(key) is not None for key in group):
            dropped = (*dropped, *group)
    inherited = {key: value for key, value in stored.items() if key not in dropped}
    return GenerationConfig.parse({**inherited, **asked}, at)


def _more_than_one(beams: object) -> bool:
    return isinstance(beams, int) and beams > 1
