"""How likely the model finds given outputs: the same numbers that a search adds up, in one pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError
from trifold.generate.config import GenerationConfig
from trifold.generate.live import Live, Model, at_rest
from trifold.nn import Inputs

CHUNK = 1024  # rows of logits at a time, so that they never stand whole in memory


class TokenScores(NamedTuple):
    """Natural logarithms of probabilities: of each token (B, T), 0 at padding; and of each sequence (B,)."""

    tokens: Tensor
    total: Tensor


@torch.inference_mode()
def score_tokens(model: Model, inputs: Inputs, targets: Inputs) -> TokenScores:
    """log P(target | input), token by token.

    inputs: sources (encoder-decoder) or prompts (decoder). targets: (B, T) without a start token, and with the end
    token where the end is to be scored; padding at the end of rows. Nothing is forbidden: for an output of a search
    with bad_words_ids [] and length_penalty 0 the total is its score. Raises DataError for rows that are empty or
    too long, or that one of the two sides lacks.
    """
    tokens, real = targets.tokens, targets.attend
    rows, width = tokens.shape
    if rows != inputs.tokens.shape[0]:
        raise DataError(f"{inputs.tokens.shape[0]} inputs and {rows} targets: give one target an input")
    if not rows:
        return TokenScores(torch.zeros(tokens.shape), torch.zeros(0))
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    with at_rest(model):
        live = Live(model, inputs, GenerationConfig(max_new_tokens=max(width, 1)))
        longest = _checked_longest(real.sum(1).tolist(), live.limits.tolist())

        scored = torch.zeros(tokens.shape, device=tokens.device)
        scored[:, 0] = _log_probs(live.logits, tokens[:, 0])
        if longest > 1:
            hidden = live.read(tokens[:, : longest - 1]).flatten(0, 1)
            wanted = tokens[:, 1:longest].flatten()
            rest = [
                _log_probs(live.head(h), y)
                for h, y in zip(hidden.split(CHUNK), wanted.split(CHUNK), strict=True)
            ]
            scored[:, 1:longest] = torch.cat(rest).view(rows, longest - 1)
    scored = scored.masked_fill(~real, 0.0)
    return TokenScores(scored, scored.sum(1))


def _checked_longest(lengths: list[int], rooms: list[int]) -> int:
    for row, (length, room) in enumerate(zip(lengths, rooms, strict=True)):
        if not length:
            raise DataError(f"row {row} is a target with zero tokens: give it text, or leave the row out")
        if length > room:
            raise DataError(
                f"row {row} is a target of {length} tokens, and the model has room for {room}: shorten it"
            )
    return max(lengths)


def _log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
