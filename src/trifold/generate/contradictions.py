"""Which generation settings cannot be meant together, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trifold.generate.config import GenerationConfig


def contradiction(config: GenerationConfig) -> str | None:
    """The first contradiction and its remedy, in words."""
    return next(_contradictions(config), None)


def _contradictions(config: GenerationConfig) -> Iterator[str]:
    yield from _of_sampling(config)
    yield from _of_contrastive_search(config)
    yield from _of_beams(config)
    yield from _of_speculation(config)
    yield from _of_lengths(config)
    yield from _of_words(config)


def _of_sampling(config: GenerationConfig) -> Iterator[str]:
    if config.temperature is not None and config.temperature <= 0:
        yield (
            f"temperature {config.temperature} is not above 0: for the likeliest token each time, "
            "leave temperature out and set do_sample to false"
        )
    if config.do_sample is False and (keys := config.sampling_keys):
        yield (
            f"{keys[0]} {getattr(config, keys[0])} and do_sample false contradict each other: "
            f"leave out {keys[0]}, or set do_sample to true"
        )
    if config.samples and config.num_beams > 1:
        yield (
            f"num_beams {config.num_beams} and {_reason_to_sample(config)} contradict each other: "
            "a beam search does not sample; set num_beams to 1, or leave out what asks for sampling"
        )
    if not config.samples and config.num_return_sequences > config.num_beams:
        yield (
            f"num_return_sequences {config.num_return_sequences} is more than num_beams {config.num_beams}: "
            "raise num_beams, or sample (do_sample true)"
        )
    if config.top_k_form == "uniform":
        if config.top_k is None:
            yield "top_k_form uniform says how to draw among the top k: set top_k too"
        if config.temperature is not None:
            yield (
                f"temperature {config.temperature} and top_k_form uniform contradict each other: "
                "where all k are alike, nothing is sharper or flatter; leave one of them out"
            )


def _of_contrastive_search(config: GenerationConfig) -> Iterator[str]:
    if config.penalty_alpha is None:
        return
    asked = f"penalty_alpha {config.penalty_alpha}"
    if config.top_k is None or config.top_k < 2:
        yield f"{asked} asks for a contrastive search, which chooses among top_k tokens: set top_k to 2 or more"
    if config.samples or config.top_k_form == "uniform":
        yield (
            f"{asked} and {_reason_to_sample(config)} contradict each other: "
            "a contrastive search does not sample; leave one of them out"
        )
    if config.num_beams > 1:
        yield (
            f"{asked} and num_beams {config.num_beams} contradict each other: "
            "a contrastive search has no beams; leave one of them out"
        )


def _of_beams(config: GenerationConfig) -> Iterator[str]:
    groups, beams, penalty = config.num_beam_groups, config.num_beams, config.diversity_penalty
    if beams % groups:
        yield f"num_beam_groups {groups} does not divide num_beams {beams}: make num_beams a multiple of it"
    if groups > 1 and penalty is None:
        yield f"num_beam_groups {groups} without diversity_penalty would all find the same: set diversity_penalty"
    if groups == 1 and penalty is not None:
        yield f"diversity_penalty {penalty} acts between groups of beams: set num_beam_groups to 2 or more"
    forced = [key for key in ("force_words", "force_words_ids") if getattr(config, key) is not None]
    if forced and beams == 1:
        yield f"{forced[0]} needs a beam search: set num_beams to 2 or more"
    if forced and groups > 1:
        yield f"{forced[0]} and num_beam_groups {groups} contradict each other: leave one of them out"


def _of_speculation(config: GenerationConfig) -> Iterator[str]:
    count = config.prompt_lookup_num_tokens
    if config.max_matching_ngram_size is not None and count is None:
        yield (
            f"max_matching_ngram_size {config.max_matching_ngram_size} says how to look up in the prompt: "
            "set prompt_lookup_num_tokens too"
        )
    if count is not None:
        for key, off in (("num_beams", 1), ("penalty_alpha", None)):
            if (value := getattr(config, key)) != off:
                yield (
                    f"prompt_lookup_num_tokens {count} and {key} {value} contradict each other: "
                    "one token is checked after the other, greedily or drawn; leave one of them out"
                )


def _of_lengths(config: GenerationConfig) -> Iterator[str]:
    for least, most in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
        low, high = getattr(config, least), getattr(config, most)
        if high is not None and (low or 0) > high:
            yield f"{least} {low} is more than {most} {high}: lower the first or raise the second"
    for one, other in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if getattr(config, one) is not None and getattr(config, other) is not None:
            yield (
                f"{one} {getattr(config, one)} and {other} {getattr(config, other)} say the same thing twice: "
                f"leave out {other}, which counts the prompt too"
            )


def _of_words(config: GenerationConfig) -> Iterator[str]:
    for text, ids in (("bad_words", "bad_words_ids"), ("force_words", "force_words_ids")):
        if getattr(config, text) is not None and getattr(config, ids):
            yield f"{text} and {ids} are both given: give all of them in one form"
    banned = {tuple(phrase) for phrase in config.bad_words_ids or ()}
    for alternatives in config.force_words_ids or ():
        phrases = alternatives if isinstance(alternatives[0], list) else [alternatives]
        found = [next((b for b in banned if _holds(phrase, b)), None) for phrase in phrases]
        if all(found):
            yield f"{phrases[0]} is in force_words_ids, and bad_words_ids forbids {list(found[0] or ())}: choose one"
    for word in config.force_words or ():
        if any(bad in word for bad in config.bad_words or ()):
            yield f"{word!r} is in force_words, and bad_words forbids it: choose one"


def _holds(phrase: object, part: tuple[int, ...]) -> bool:
    tokens = tuple(phrase) if isinstance(phrase, list) else (phrase,)
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def _reason_to_sample(config: GenerationConfig) -> str:
    keys = config.sampling_keys
    if keys:
        return f"{keys[0]} {getattr(config, keys[0])}"
    return "do_sample true" if config.samples else f"top_k_form {config.top_k_form}"
