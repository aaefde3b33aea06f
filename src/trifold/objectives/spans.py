"""T5's objective: spans give way to sentinels, and are written behind these (Raffel et al. 2020, section 3.1.4).

15 % of the tokens, spans of 3 on average. Everything else is in rewriting.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.objectives.rewriting import RewritingSettings, Spoil
from trifold.text import Tokenizer
from trifold.text.annotation import sentinel_ids, special_flags
from trifold.text.corruption import corrupt_spans, max_spans
from trifold.text.spans import Flags, Ids, Rng


class SpansSettings(RewritingSettings):
    """Writing the spans that were taken out of a text."""

    kind: Literal["spans"] = "spans"
    rate: float = Field(0.15, gt=0, le=0.5, description="share of the tokens that are taken out")
    mean_span: float = Field(3.0, ge=1, description="mean length of a span, in tokens")


def taken_out(settings: SpansSettings, tokenizer: Tokenizer, width: int) -> Spoil:
    """Span corruption. Raises SettingsError for too few sentinels."""
    sentinels, special = sentinel_ids(tokenizer), special_flags(tokenizer)
    needed = max_spans(width, settings.rate, settings.mean_span)
    if len(sentinels) < needed:
        raise SettingsError(
            f"tokenizer.sentinels: texts of {width} tokens have up to {needed} spans, and the tokenizer has "
            f"{len(sentinels)} sentinels; set tokenizer.sentinels={needed}, or make texts shorter (model.max_positions)"
        )

    def spoil(ids: Ids, words: Flags, sentences: Flags, rng: Rng) -> tuple[Ids, Ids]:
        # What is special inside a text (an unknown word) would cut a span in two: it is taken out like the others.
        inside = ~special[ids] | (ids == tokenizer.unk_id)
        found = corrupt_spans(ids, inside, rng, sentinels, settings.rate, settings.mean_span)
        return found.inputs, found.targets

    return spoil
