"""Beam search: the K most likely partial outputs of each sentence, in one group or in diverse
groups.

With n end tokens, the (1 + n)·K best continuations are candidates. Those among the first K that end
are finished outputs, and the K best that have not ended continue. A beam has n continuations by end
tokens, so K always remain, unless others complete a stop string. Ends beyond rank K are dropped.
Shapes: B sentences, G groups, K beams, R = B·G·K rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trifold.generate.decoding import DecodingState, SearchSetup, refuse_nan
from trifold.generate.processors import NEVER
from trifold.generate.stopping import Hypothesis

CHUNK = 64  # tokens of a chunk of the vocabulary in `best_continuations`
LARGE = 4096  # smallest vocabulary for which chunks are faster


class Continuations(NamedTuple):
    """The K best continuations of every sentence (B, K) that have not ended, best first.

    exists: False where fewer than K continue. scores: NEVER there and at the length limit.
    """

    scores: Tensor
    rows: Tensor
    tokens: Tensor
    exists: Tensor


def beam_search(state: DecodingState, setup: SearchSetup) -> list[list[Hypothesis]]:
    """The finished outputs of each sentence, best first, at most `num_beams`.

    With `num_beam_groups`, each group is a beam search of its own, in which a token costs
    `diversity_penalty` for every beam of an earlier group that continues with it at this step
    (Vijayakumar et al. 2018). As in Hugging Face transformers, the penalty is part of the score.
    """
    config = setup.config
    groups = config.num_beam_groups
    beams = config.num_beams // config.num_beam_groups
    penalty = config.diversity_penalty or 0.0
    count = len(state.sentences)
    finished = [FinishedBeams(setup, count, beams) for _ in range(groups)]
    state.expand(config.num_beams)
    # All beams are equal at first, so only one of them may be continued.
    scores = state.logits.new_full((count, groups, beams), NEVER)
    scores[:, :, 0] = 0
    while True:
        log_probs = processed_log_probs(state, setup)
        # (B, V) beams of the groups so far that continue with each token
        counts = log_probs.new_zeros(len(scores), log_probs.shape[-1]) if groups > 1 else None
        steps = []
        for group in range(groups):
            group_log_probs = log_probs.view(len(scores), groups, beams, -1)[:, group]
            if counts is not None:
                group_log_probs = group_log_probs - penalty * counts[:, None]
            step = _continue(
                state, finished[group], group_log_probs, scores[:, group], group * beams
            )
            if counts is not None:
                counts.scatter_add_(1, step.tokens, step.exists.to(counts.dtype))
            steps.append(step)

        scores = torch.stack([step.scores for step in steps], dim=1)
        remaining = _remaining(state, finished, scores)
        setup.on_step(state.generated + 1, len(remaining))
        if not len(remaining):
            by_sentence = zip(*(group.outputs for group in finished), strict=True)
            return [
                best_first([output for each in found for output in each]) for found in by_sentence
            ]
        rows = torch.cat([step.rows for step in steps], dim=1)
        tokens = torch.cat([step.tokens for step in steps], dim=1)
        scores = scores[remaining]
        state.advance(tokens[remaining].flatten(), rows[remaining].flatten(), remaining)


def processed_log_probs(state: DecodingState, setup: SearchSetup) -> Tensor:
    """(R, V) log-probabilities of the next token after the processors.

    Forbidden tokens do not make the others more likely, so the score of an output is its
    log-probability under the model; `renormalize_logits` makes the probabilities sum to 1 again.
    """
    log_probs = setup.process(state.logits.log_softmax(-1), state.context)
    return log_probs.log_softmax(-1) if setup.config.renormalize_logits else log_probs


def _continue(
    state: DecodingState, finished: FinishedBeams, log_probs: Tensor, scores: Tensor, first: int
) -> Continuations:
    """Continue the K beams from beam `first` on, with log_probs (B, K, V) and scores (B, K).

    The outputs that end among the best K are added to `finished`.
    """
    sentences, beams, vocabulary = log_probs.shape
    setup = finished.setup
    length = state.generated + 1
    stopping = setup.stopping
    count = min((1 + len(stopping.ids)) * beams, beams * vocabulary)
    best, parents, tokens = best_continuations(log_probs, scores, count)
    refuse_nan(best)
    stride = setup.config.num_beams
    rows = torch.arange(first, sentences * stride, stride, device=scores.device)[:, None] + parents
    stopped = stopping.completes_string(state.generated_tokens, tokens, rows, best > NEVER)
    ended = stopping.is_end(tokens) | stopped
    full = state.limits <= length

    done = ((ended | full[:, None]) & (best > NEVER))[:, :beams].nonzero().unbind(1)
    if len(done[0]):
        final = best[done] / setup.divisor(length)
        before = state.generated_tokens(rows[done])
        found = stopping.hypotheses(before, tokens[done], final, stopped[done], full[done[0]])
        for number, output in zip(state.sentences[done[0]].tolist(), found, strict=True):
            finished.add(number, output)

    next_scores, index = best.masked_fill(ended, NEVER).topk(beams)
    exists = next_scores > NEVER
    next_scores = next_scores.masked_fill(full[:, None], NEVER)
    if setup.hook is not None:
        kept = torch.zeros_like(ended).scatter(1, index, exists & ~full[:, None])
        kept[done] = True
        setup.hook.step(state, rows, tokens, best, kept, ended | full[:, None])
    return Continuations(next_scores, rows.gather(1, index), tokens.gather(1, index), exists)


def _remaining(state: DecodingState, finished: list[FinishedBeams], scores: Tensor) -> Tensor:
    """Positions of the sentences with an unfinished group; sets `scores` (B, G, K) of finished
    groups to NEVER.
    """
    length = state.generated + 1
    best = scores[:, :, 0].tolist()
    remaining = []
    rows = zip(state.sentences.tolist(), state.limits.tolist(), best, strict=True)
    for index, (number, limit, row) in enumerate(rows):
        groups = zip(finished, row, strict=True)
        is_closed = [not group.can_improve(number, length, limit, score) for group, score in groups]
        scores[index, is_closed] = NEVER
        if not all(is_closed):
            remaining.append(index)
    return torch.tensor(remaining, dtype=torch.long, device=scores.device)


class FinishedBeams:
    """The best `keep` outputs so far of each of `count` parallel searches."""

    def __init__(self, setup: SearchSetup, count: int, keep: int) -> None:
        self.setup = setup
        self.keep = keep
        self.outputs: list[list[Hypothesis]] = [[] for _ in range(count)]

    def add(self, number: int, output: Hypothesis) -> None:
        """Add an output of search `number`, and drop the worst if there are too many."""
        self.outputs[number] = best_first([*self.outputs[number], output])[: self.keep]

    def can_improve(self, number: int, length: int, limit: int, best: float) -> bool:
        """Whether search `number` continues; best: log P of its most likely partial output of
        `length` tokens.

        The criteria are those of `early_stopping` in Hugging Face transformers.
        """
        config = self.setup.config
        found = self.outputs[number]
        if best == NEVER:
            return False
        if len(found) < self.keep:
            return True
        if config.early_stopping is True:
            return False
        # log P can only fall; with a positive α the score is highest at the maximum length.
        improves_with_length = config.early_stopping == "never" and config.length_penalty > 0
        length = limit if improves_with_length else length
        return best / self.setup.divisor(length) > found[-1].score


def best_first(outputs: list[Hypothesis]) -> list[Hypothesis]:
    """Sort by descending score; the order of ties is kept."""
    return sorted(outputs, key=lambda output: output.score, reverse=True)


def best_continuations(
    log_probs: Tensor, scores: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """log_probs (B, K, V) + scores (B, K) -> the best `count` of each sentence: values, beams,
    tokens; best first.

    For a large vocabulary, only the `count` chunks with the largest maxima are sorted, which
    contain the best tokens. Maxima are computed at memory speed; top-k over the whole vocabulary is
    many times slower.
    """
    vocabulary = log_probs.shape[-1]
    if vocabulary < LARGE or vocabulary // CHUNK < count:
        values, places = (log_probs + scores[..., None]).flatten(1).topk(count)
        return values, places // vocabulary, places % vocabulary

    whole, *rest = log_probs.split(vocabulary // CHUNK * CHUNK, -1)  # the last chunk may be smaller
    maxima = [
        whole.unflatten(-1, (-1, CHUNK)).amax(-1),
        *(each.amax(-1, keepdim=True) for each in rest),
    ]
    largest = torch.cat(maxima, -1)
    _, where = (largest + scores[..., None]).flatten(1).topk(count)
    beams = where // largest.shape[-1]
    chunks = where % largest.shape[-1]
    tokens = chunks[..., None] * CHUNK + torch.arange(CHUNK, device=scores.device)
    real = tokens.clamp(max=vocabulary - 1)
    found = (
        log_probs.flatten(1)
        .gather(1, (beams[..., None] * vocabulary + real).flatten(1))
        .view_as(real)
    )
    found = found.masked_fill(tokens != real, NEVER) + scores.gather(1, beams)[..., None]
    values, places = found.flatten(1).topk(count)
    return values, beams.gather(1, places // CHUNK), real.flatten(1).gather(1, places)
