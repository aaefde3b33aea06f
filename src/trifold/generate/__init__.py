"""Logits to tokens.

A sentence goes through this room like this: `config` says what is asked for; `live` has the model read the source or
the prompt, and says after each token what may come next; `processors` reweigh or forbid; `samplers` take one token,
or a search of `search` follows several beginnings at once; `ends` knows when an output is over (and `limits`, when it
has to be), which then becomes a `Hypothesis` and leaves the batch. `streaming` turns tokens into text while they come.
`scoring` asks the reverse question: how likely is a given output?
"""

from __future__ import annotations

from trifold.generate.config import GenerationConfig, resolve
from trifold.generate.ends import Codec, Hypothesis
from trifold.generate.limits import Limit, limit
from trifold.generate.live import Model
from trifold.generate.run import generate_tokens, stream_text, stream_tokens
from trifold.generate.scoring import TokenScores, score_tokens
from trifold.generate.streaming import Speaker, until_stop

__all__ = [
    "Codec",
    "GenerationConfig",
    "Hypothesis",
    "Limit",
    "Model",
    "Speaker",
    "TokenScores",
    "generate_tokens",
    "limit",
    "resolve",
    "score_tokens",
    "stream_text",
    "stream_tokens",
    "until_stop",
]
