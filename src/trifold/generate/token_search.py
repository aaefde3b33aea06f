"""Searches that keep one row per output: greedy decoding and sampling, and contrastive search.

Shapes: B sentences, K candidates, E model width, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError
from trifold.generate.decoding import DecodingState, SearchSetup, refuse_nan
from trifold.generate.processors import ABSENT, NEVER, KnownContext
from trifold.generate.sampling import Sampler
from trifold.generate.stopping import Hypothesis


class SearchStep(NamedTuple):
    """The sentences (n,) that received a token, the tokens (n,), end tokens included, and the
    outputs that ended.
    """

    sentences: Tensor
    tokens: Tensor
    ended: dict[int, Hypothesis]


def token_search(state: DecodingState, setup: SearchSetup, choose: Sampler) -> Iterator[SearchStep]:
    """Append the token that `choose` returns to each sentence until it ends."""
    scores = initial_scores(state, setup)
    while True:
        logits = setup.process(state.logits, state.context)
        tokens = choose(logits, state.sentences, state.generated)
        if setup.has_scores:
            scores = scores + log_probs_of(logits, tokens)
        step, remaining = take_step(state, setup, tokens, scores)
        if setup.hook is not None:
            ended = torch.isin(step.sentences, step.sentences.new_tensor([*step.ended]))
            columns = (torch.arange(len(tokens)), tokens, scores, torch.ones_like(ended), ended)
            setup.hook.step(state, *(column[:, None] for column in columns))
        yield step
        if remaining is None:
            state.advance(tokens)
        elif len(remaining):
            scores = scores[remaining]
            state.advance(tokens[remaining], remaining, remaining)
        else:
            return


def initial_scores(state: DecodingState, setup: SearchSetup) -> Tensor:
    """(B,) log P of no tokens; NaN if scores are not computed."""
    value = 0.0 if setup.has_scores else math.nan
    return state.logits.new_full((len(state.sentences),), value)


def log_probs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """logits (R, V), tokens (R,) -> (R,)."""
    return logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


def contrastive_search(state: DecodingState, setup: SearchSetup) -> Iterator[SearchStep]:
    """Of the k most likely tokens, choose the one with the best value of

        (1 - α) · p(token)  -  α · max over the previous tokens j of cos(h_token, h_j)

    where h are hidden states (Su et al. 2022, equation 5). The K candidates of a sentence are its K
    rows: all of them are read, and one is kept. The score of an output is log P, as in every
    search. Raises DataError for a prompt that fills all positions, because candidates are read
    before one is chosen.
    """
    config = setup.config
    assert config.penalty_alpha is not None and config.top_k is not None
    alpha = config.penalty_alpha
    k = min(config.top_k, state.logits.shape[-1])
    _limit_to_positions(state)
    history = F.normalize(state.hidden, dim=-1)
    real = state.attend
    scores = state.logits.new_zeros(len(state.sentences))
    # The row that was kept for each sentence.
    chosen = torch.arange(len(scores), device=scores.device) * k
    state.expand(k)
    while True:
        remaining_tokens = state.limits - state.generated
        context = KnownContext(
            state.tokens[chosen], state.generated, remaining_tokens, state.sources
        )
        log_probs = setup.process(state.logits[chosen], context).log_softmax(-1)
        candidates, tokens = log_probs.topk(k)
        refuse_nan(candidates)
        state.advance(tokens.flatten(), chosen.repeat_interleave(k), reads_states=True)

        hidden = F.normalize(state.hidden[:, -1].unflatten(0, (-1, k)), dim=-1)  # (B, K, E)
        similarity = hidden @ history.transpose(1, 2)  # (B, K, previous tokens)
        if real is not None:
            similarity = similarity.masked_fill(~real[:, None], NEVER)
        values = (1 - alpha) * candidates.exp() - alpha * similarity.amax(-1)
        best = values.masked_fill(candidates == NEVER, NEVER).argmax(-1)

        sentences = torch.arange(len(best), device=best.device)
        chosen = sentences * k + best
        taken = tokens[sentences, best]
        scores = scores + candidates[sentences, best]
        history = torch.cat([history, hidden[sentences, best][:, None]], dim=1)
        real = None if real is None else torch.cat([real, real.new_ones(len(real), 1)], dim=1)

        step, remaining = take_step(state, setup, taken, scores, chosen)
        yield step
        if remaining is not None:
            if not len(remaining):
                return
            history = history[remaining]
            scores = scores[remaining]
            real = None if real is None else real[remaining]
            rows = (remaining[:, None] * k + torch.arange(k, device=remaining.device)).flatten()
            state.select(rows, remaining)
            state.logits = state.logits[rows]
            chosen = (
                torch.arange(len(remaining), device=remaining.device) * k + chosen[remaining] % k
            )


def take_step(
    state: DecodingState,
    setup: SearchSetup,
    tokens: Tensor,
    scores: Tensor,
    chosen: Tensor | None = None,
) -> tuple[SearchStep, Tensor | None]:
    """The step that adds `tokens` to the sentences, and the positions of those that continue; None
    if all do.

    chosen: the row of each sentence, if its token has already been appended; default: the only one,
    and it has not.
    """
    length = state.generated + (chosen is None)

    def before(positions: Tensor) -> Tensor:
        """The tokens of these sentences that were generated before this step."""
        rows = positions if chosen is None else chosen[positions]
        return state.generated_tokens(rows)[:, : length - 1]

    stopping = setup.stopping
    if not (stopping.strings or stopping.may_end(tokens) or min(state.limits.tolist()) <= length):
        setup.on_step(length, len(tokens))
        return SearchStep(state.sentences, tokens, {}), None
    full = state.limits <= length
    stopped = stopping.completes_string(before, tokens)
    ended = stopping.is_end(tokens) | full | stopped
    if not bool(ended.any()):
        setup.on_step(length, len(tokens))
        return SearchStep(state.sentences, tokens, {}), None
    done = ended.nonzero().squeeze(1)
    remaining = (~ended).nonzero().squeeze(1)
    setup.on_step(length, len(remaining))
    final = scores[done] / setup.divisor(length)
    found = stopping.hypotheses(before(done), tokens[done], final, stopped[done], full[done])
    outputs = dict(zip(state.sentences[done].tolist(), found, strict=True))
    return SearchStep(state.sentences, tokens, outputs), remaining


def _limit_to_positions(state: DecodingState) -> None:
    limits = state.max_positions - (state.tokens != ABSENT).sum(1)
    for row, limit in enumerate(limits.tolist()):
        if limit < 1:
            raise DataError(
                f"row {row} is a prompt that fills all {state.max_positions} positions "
                "(max_positions), and "
                "contrastive search needs one more: shorten it"
            )
    state.limits = state.limits.minimum(limits)
