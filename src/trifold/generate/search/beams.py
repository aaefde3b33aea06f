"""The K likeliest beginnings of each sentence side by side, in one group or in several that avoid each other.

Of the 2K best continuations, ends among the first K are retired with their final score, and the K best that have not
ended go on: at most K can end, so there are always K. What has ended at rank K+1 or worse is forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Ends, Hypothesis
from trifold.generate.live import Live
from trifold.generate.processors import Processor
from trifold.generate.search.finished import (
    NEVER,
    Finished,
    Watch,
    best_first,
    divisor,
    refuse_nan,
    weighed,
)
from trifold.generate.search.top import best_continuations


class _Continued(NamedTuple):
    """The best continuations of every sentence (B, n), best first; and which K of them go on (B, K).

    said: whether there is one that goes on, or would if there were room; onward_scores: NEVER where there is none.
    """

    scores: Tensor
    rows: Tensor
    tokens: Tensor
    ended: Tensor
    stopped: Tensor | None
    onward: Tensor
    onward_scores: Tensor
    said: Tensor


def beam_search(
    live: Live, config: GenerationConfig, process: Processor, ends: Ends, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """The finished outputs of each sentence, best first, at most `num_beams`.

    With `num_beam_groups`, each group is a beam search of its own, in which a token costs `diversity_penalty` for
    every beam of an earlier group that takes it and goes on at this step (Vijayakumar et al. 2018); what it cost is
    part of the score, as in the ecosystem.
    """
    groups, beams = config.num_beam_groups, config.num_beams // config.num_beam_groups
    penalty, count = config.diversity_penalty or 0.0, len(live.sentences)
    finished = [Finished(config, count, beams) for _ in range(groups)]
    live.branch(config.num_beams)
    # All beams are the same at first, so that only one of them may be continued.
    scores = live.logits.new_full((count, groups, beams), NEVER)
    scores[:, :, 0] = 0
    while True:
        log_probs = weighed(live, process, config)
        taken: Tensor | None = None
        steps = []
        for group in range(groups):
            mine = log_probs.view(len(scores), groups, beams, -1)[:, group]
            if taken is not None:
                mine = mine - penalty * taken[:, None]
            step = _continued(live, mine, scores[:, group], group * beams, config.num_beams, ends)
            _retire(live, finished[group], step, beams, config, ends)
            if group + 1 < groups:
                taken = _counted(taken, step, log_probs)
            steps.append(step)

        scores = torch.stack([step.onward_scores for step in steps], dim=1)
        staying = _staying(live, finished, scores)
        if watch is not None:
            watch(live.generated + 1, len(staying))
        if not len(staying):
            by_sentence = zip(*(group.outputs for group in finished), strict=True)
            return [best_first([output for each in found for output in each]) for found in by_sentence]
        rows = torch.cat([step.rows.gather(1, step.onward) for step in steps], dim=1)
        tokens = torch.cat([step.tokens.gather(1, step.onward) for step in steps], dim=1)
        if len(staying) == len(scores):
            live.go_on(tokens.flatten(), rows.flatten())
        else:
            scores = scores[staying]
            live.go_on(tokens[staying].flatten(), rows[staying].flatten(), staying)


def _continued(
    live: Live, log_probs: Tensor, scores: Tensor, first: int, stride: int, ends: Ends
) -> _Continued:
    """log_probs (B, K, V) and scores (B, K) of the beams from number `first` of `stride` on."""
    sentences, beams, vocabulary = log_probs.shape
    count = min((1 + len(ends.ids)) * beams, beams * vocabulary)
    best, parents, tokens = best_continuations(log_probs, scores, count)
    refuse_nan(best)
    rows = torch.arange(first, sentences * stride, stride, device=scores.device)[:, None] + parents
    stopped = ends.by_string(live.texts, tokens, rows, best > NEVER)
    over = ends.by_id(tokens) if stopped is None else ends.by_id(tokens) | stopped
    full = (live.limits <= live.generated + 1)[:, None]
    going, onward = best.masked_fill(over, NEVER).topk(beams)
    return _Continued(
        best, rows, tokens, over | full, stopped, onward, going.masked_fill(full, NEVER), going > NEVER
    )


def _retire(
    live: Live, finished: Finished, step: _Continued, beams: int, config: GenerationConfig, ends: Ends
) -> None:
    """What has ended among the best K is an output."""
    there = step.ended[:, :beams] & (step.scores[:, :beams] > NEVER)
    sentences, ranks = there.nonzero().unbind(1)
    if not len(sentences):
        return
    here = (sentences, ranks)
    final = step.scores[here] / divisor(config, live.generated + 1)
    strings = None if step.stopped is None else step.stopped[here]
    full = live.limits[sentences] == live.generated + 1
    found = ends.hypotheses(live.texts(step.rows[here]), step.tokens[here], final, strings, full)
    for number, output in zip(live.sentences[sentences].tolist(), found, strict=True):
        finished.add(number, output)


def _counted(taken: Tensor | None, step: _Continued, like: Tensor) -> Tensor:
    """(B, V) how many beams of the groups so far have just taken each token."""
    if taken is None:
        taken = like.new_zeros(len(step.tokens), like.shape[-1])
    tokens = step.tokens.gather(1, step.onward)
    return taken.scatter_add_(1, tokens, step.said.to(taken.dtype))


def _staying(live: Live, finished: list[Finished], scores: Tensor) -> Tensor:
    """Positions of the sentences of which some group goes on; `scores` (B, G, K) of groups that do not become NEVER."""
    length = live.generated + 1
    best = scores[:, :, 0].tolist()
    staying = []
    for place, (number, limit) in enumerate(zip(live.sentences.tolist(), live.limits.tolist(), strict=True)):
        open_groups = [
            group.goes_on(number, length, limit, best[place][g]) for g, group in enumerate(finished)
        ]
        if any(open_groups):
            staying.append(place)
        for g, is_open in enumerate(open_groups):
            if not is_open:
                scores[place, g] = NEVER
    return torch.tensor(staying, dtype=torch.long, device=scores.device)
