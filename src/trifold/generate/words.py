"""Words and ids that were asked for: those of text become phrases of ids, and ids must be some."""

from __future__ import annotations

from collections.abc import Iterator

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Codec
from trifold.nn import ModelConfig

TEXTUAL = ("bad_words", "force_words", "stop_strings")
IDS = ("bad_words_ids", "force_words_ids", "forced_bos_token_id", "forced_eos_token_id")


def spelled_out(config: GenerationConfig, codec: Codec | None, model: ModelConfig) -> GenerationConfig:
    """The same with ids for the words that must appear, each as it is written at the start of a text or after a space.

    Raises UsageError where there are words, and no tokenizer or no tokens for them; and for ids that no token has.
    """
    _check_ids(config, model.output_vocab_size)
    asked = [key for key in TEXTUAL if getattr(config, key) is not None]
    if not asked:
        return config
    if codec is None:
        raise UsageError(f"{asked[0]} is text: give the tokenizer too, or ids")
    if config.force_words is None:
        return config
    phrases = [_spellings(word, codec) for word in config.force_words]
    return config.model_copy(update={"force_words_ids": phrases, "force_words": None})


def _check_ids(config: GenerationConfig, vocabulary: int) -> None:
    for key in IDS:
        wrong = next((number for number in _flat(getattr(config, key)) if number >= vocabulary), None)
        if wrong is not None:
            raise UsageError(
                f"{key}: {wrong} is not an id, the vocabulary has {vocabulary:,} tokens (from 0)"
            )


def _flat(ids: object) -> Iterator[int]:
    if isinstance(ids, int):
        yield ids
    elif isinstance(ids, list):
        for each in ids:
            yield from _flat(each)


def _spellings(word: str, codec: Codec) -> list[list[int]]:
    found = [ids for ids in codec.encode([word, f" {word}"]) if ids]
    if not found:
        raise UsageError(f"{word!r} has no tokens: give another word")
    return [ids for place, ids in enumerate(found) if ids not in found[:place]]
