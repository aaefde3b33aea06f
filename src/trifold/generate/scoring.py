"""The log-probability of given outputs, in one pass: the numbers that a search adds up."""

from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError
from trifold.generate.decoding import DecodingState, Model, eval_mode
from trifold.generation_config import GenerationConfig
from trifold.nn import Inputs

CHUNK = 1024  # rows of logits at a time, which limits memory


class TokenScores(NamedTuple):
    """Natural log-probabilities of each token (B, T), 0 at padding, and of each sequence (B,)."""

    tokens: Tensor
    total: Tensor


@torch.inference_mode()
def score_tokens(model: Model, inputs: Inputs, targets: Inputs) -> TokenScores:
    """log P(target | input), token by token.

    inputs: sources (encoder-decoder) or prompts (decoder). targets: (B, T) without a start token,
    with the end token where the end is to be scored; padded at the end of rows. No token is
    forbidden: the total is the score of a search with bad_words_ids [] and length_penalty 0. Raises
    DataError for empty or too long rows, and for unequal counts.
    """
    tokens = targets.tokens
    real = targets.attend
    rows, width = tokens.shape
    if rows != inputs.tokens.shape[0]:
        raise DataError(
            f"{inputs.tokens.shape[0]} inputs and {rows} targets: pass one target per input"
        )
    if not rows:
        return TokenScores(torch.zeros(tokens.shape), torch.zeros(0))
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    with eval_mode(model):
        state = DecodingState(model, inputs, GenerationConfig(max_new_tokens=max(width, 1)))
        longest = _check_lengths(real.sum(1).tolist(), state.limits.tolist())

        scores = torch.zeros(tokens.shape, device=tokens.device)
        scores[:, 0] = _log_probs(state.logits, tokens[:, 0])
        if longest > 1:
            hidden = state.read(tokens[:, : longest - 1]).flatten(0, 1)
            labels = tokens[:, 1:longest].flatten()
            chunks = zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
            rest = [_log_probs(state.head(states), label) for states, label in chunks]
            scores[:, 1:longest] = torch.cat(rest).view(rows, longest - 1)
    scores = scores.masked_fill(~real, 0.0)
    # Without the columns of padding, whose number would change the order of the sum.
    return TokenScores(scores, scores[:, :longest].sum(1))


def _check_lengths(lengths: list[int], limits: list[int]) -> int:
    """The longest target. Raises DataError for an empty or too long one."""
    for row, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if not length:
            raise DataError(
                f"row {row} is a target with zero tokens: add text, or leave the row out"
            )
        if length > limit:
            raise DataError(
                f"row {row} is a target of {length} tokens; the maximum is {limit}; shorten it"
            )
    return max(lengths)


def _log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
