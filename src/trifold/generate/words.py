"""Words given as text become phrases of ids, for the settings that forbid and force them."""

from __future__ import annotations

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Codec

TEXTUAL = ("bad_words", "force_words", "stop_strings")


def spelled_out(config: GenerationConfig, codec: Codec | None, pad_id: int) -> GenerationConfig:
    """The same with ids for words, each as it is written at the start of a text and after a space.

    Raises UsageError where there are words, and no tokenizer or no tokens for them.
    """
    asked = [key for key in TEXTUAL if getattr(config, key) is not None]
    if not asked:
        return config
    if codec is None:
        raise UsageError(f"{asked[0]} is text: give the tokenizer too, or ids")
    changes: dict[str, object] = {}
    if config.bad_words is not None:
        every = [[pad_id], *(ids for word in config.bad_words for ids in _spellings(word, codec))]
        changes |= {"bad_words_ids": every, "bad_words": None}
    if config.force_words is not None:
        changes |= {
            "force_words_ids": [_spellings(word, codec) for word in config.force_words],
            "force_words": None,
        }
    return config.model_copy(update=changes)


def _spellings(word: str, codec: Codec) -> list[list[int]]:
    found = [ids for ids in codec.encode([word, f" {word}"]) if ids]
    if not found:
        raise UsageError(f"{word!r} has no tokens: give another word")
    return [ids for place, ids in enumerate(found) if ids not in found[:place]]
