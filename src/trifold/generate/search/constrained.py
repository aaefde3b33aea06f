"""Beams in which every forced phrase appears (Post & Vilar 2018, dynamic beam allocation).

Beginnings that still miss 0, 1, 2, … tokens of the phrases stand in banks of their own, and the K beams are dealt to
the banks in turn, so that those that have said a forced word are not measured against those that have not. A beginning
may end only in bank 0, and one that could no longer say all before its limit is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Ends, Hypothesis
from trifold.generate.live import Live
from trifold.generate.phrases import State, Wishes
from trifold.generate.processors import Processor
from trifold.generate.search.finished import NEVER, Finished, Watch, divisor, refuse_nan, weighed


class _Beginning(NamedTuple):
    """One continuation of one row."""

    score: float
    row: int
    token: int
    state: State
    missing: int


def constrained_beam_search(
    live: Live, config: GenerationConfig, process: Processor, ends: Ends, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """The finished outputs of each sentence, best first, at most `num_beams`; each holds all phrases.

    A forced phrase outweighs whatever else forbids its tokens. Raises UsageError where a row has no room for them.
    """
    assert config.force_words_ids is not None
    wishes, beams = Wishes.of(config.force_words_ids), config.num_beams
    _check(wishes, ends, live.limits)
    finished = Finished(config, len(live.sentences), beams)
    live.branch(beams)
    states = [wishes.start] * len(live.logits)
    scores = live.logits.new_full((len(live.sentences), beams), NEVER)
    scores[:, 0] = 0
    while True:
        length = live.generated + 1
        unbiased = live.logits.log_softmax(-1)
        log_probs = weighed(live, process, config)
        pool = _continuations(log_probs, unbiased, scores, states, wishes, ends)
        onward = []
        for place, (number, limit) in enumerate(
            zip(live.sentences.tolist(), live.limits.tolist(), strict=True)
        ):
            feasible = [each for each in pool[place] if each.missing <= limit - length]
            chosen = _retire_and_choose(live, finished, number, feasible, length == limit, config, ends)
            best = max((each.score for each in chosen), default=NEVER)
            onward.append(chosen if finished.goes_on(number, length, limit, best) else [])
        staying = [place for place, chosen in enumerate(onward) if chosen]
        if watch is not None:
            watch(length, len(staying))
        if not staying:
            return finished.outputs

        # Where there are fewer beginnings than beams, the first is repeated as one that is never continued.
        rows = [onward[p] + [onward[p][0]._replace(score=NEVER)] * (beams - len(onward[p])) for p in staying]
        flat = [each for chosen in rows for each in chosen]
        device = live.logits.device
        scores = torch.tensor([each.score for each in flat], device=device).view(len(staying), beams)
        states = [each.state for each in flat]
        live.go_on(
            torch.tensor([each.token for each in flat], device=device),
            torch.tensor([each.row for each in flat], device=device),
            None if len(staying) == len(onward) else torch.tensor(staying, device=device),
        )


def _continuations(
    log_probs: Tensor,
    unbiased: Tensor,
    scores: Tensor,
    states: list[State],
    wishes: Wishes,
    ends: Ends,
) -> list[list[_Beginning]]:
    """For each sentence: its best continuations, the best of each row, and all that bring a phrase further.

    Best first; ends only of rows that miss nothing.
    """
    sentences, beams = scores.shape
    open_rows = [row for row, state in enumerate(states) if wishes.missing(state)]
    if open_rows:
        rows = torch.tensor(open_rows, device=scores.device)[:, None]
        log_probs[rows, torch.tensor([ends.ids], dtype=torch.long, device=scores.device)] = NEVER
    wanted = [(row, token) for row in open_rows for token in sorted(wishes.advances(states[row]))]
    values: dict[tuple[int, int], float] = {}
    before = scores.flatten()
    if wanted:
        here = torch.tensor(wanted, device=scores.device).unbind(1)
        asked = torch.where(log_probs[here] > NEVER, log_probs[here], unbiased[here])
        values |= zip(wanted, (before[here[0]] + asked).tolist(), strict=True)
    total = log_probs.add_(before[:, None])
    top = min((1 + len(ends.ids)) * beams, total.shape[-1])
    best, tokens = total.topk(top)  # enough of each row for the best of all rows
    refuse_nan(best)
    for row, (some, names) in enumerate(zip(best.tolist(), tokens.tolist(), strict=True)):
        for score, token in zip(some, names, strict=True):
            values.setdefault((row, token), score)

    pool: list[list[_Beginning]] = [[] for _ in range(sentences)]
    for (row, token), score in values.items():
        if score > NEVER:
            state = wishes.after(states[row], token)
            pool[row // beams].append(_Beginning(score, row, token, state, wishes.missing(state)))
    return [sorted(each, key=lambda one: one.score, reverse=True) for each in pool]


def _retire_and_choose(
    live: Live,
    finished: Finished,
    number: int,
    pool: list[_Beginning],
    full: bool,
    config: GenerationConfig,
    ends: Ends,
) -> list[_Beginning]:
    """What ends in bank 0 among its best K becomes an output; the K that go on are dealt from the banks in turn."""
    beams, length = config.num_beams, live.generated + 1
    stopped = dict(zip(pool, _stopped(live, pool, ends), strict=True))
    banks: dict[int, list[_Beginning]] = {}
    for each in pool:
        banks.setdefault(each.missing, []).append(each)

    def over(each: _Beginning) -> bool:
        return full or stopped[each] or each.token in ends.ids

    for each in filter(over, banks.get(0, [])[:beams]):
        text = live.texts(torch.tensor([each.row], device=live.tokens.device))[0].tolist()
        score = each.score / divisor(config, length)
        finished.add(number, ends.hypothesis(text, each.token, score, stopped[each], full))
    going = [[each for each in bank if not over(each)] for _, bank in sorted(banks.items())]
    chosen = [bank[rank] for rank in range(beams) for bank in going if rank < len(bank)]
    return sorted(chosen[:beams], key=lambda each: each.score, reverse=True)


def _stopped(live: Live, pool: list[_Beginning], ends: Ends) -> list[bool]:
    """Which of them complete a stop string."""
    device = live.tokens.device
    tokens = torch.tensor([each.token for each in pool], dtype=torch.long, device=device)
    rows = torch.tensor([each.row for each in pool], dtype=torch.long, device=device)
    found = ends.by_string(live.texts, tokens, rows)
    stopped: list[bool] = [False] * len(pool) if found is None else found.tolist()
    return stopped


def _check(wishes: Wishes, ends: Ends, limits: Tensor) -> None:
    if closing := wishes.words & set(ends.ids):
        raise UsageError(f"{min(closing)} ends an output, and force_words_ids holds it: leave it out")
    needed = wishes.missing(wishes.start)
    for row, limit in enumerate(limits.tolist()):
        if needed > limit:
            raise UsageError(
                f"row {row} may get {limit} tokens, and the forced words need {needed}: raise max_new_tokens"
            )
