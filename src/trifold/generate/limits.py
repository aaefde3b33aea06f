"""How long an output may get, and who says so."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trifold.generate.config import LONGEST, GenerationConfig
from trifold.nn import ModelConfig


class Limit(NamedTuple):
    """The most tokens of an output. by: what was asked for, the model's positions, or what is usual where none asks."""

    tokens: int
    by: Literal["asked", "positions", "usual"]


def limit(config: GenerationConfig, model: ModelConfig, length: int) -> Limit:
    """That of an output for a source, or behind a prompt, of `length` tokens; below 1 where max_length leaves no room.

    The last token of all is said, but never read.
    """
    prompt = 1 if model.encoder_layers else length
    room = model.max_positions + 1 - prompt
    if config.max_length is not None:
        wanted = Limit(config.max_length - prompt, "asked")
    elif config.max_new_tokens is not None:
        wanted = Limit(config.max_new_tokens, "asked")
    else:
        wanted = Limit((length if model.encoder_layers else 0) + LONGEST, "usual")
    return Limit(room, "positions") if room < wanted.tokens else wanted
