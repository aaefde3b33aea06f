"""Beam search in which every forced phrase appears (dynamic beam allocation, Post & Vilar 2018).

Candidates that miss 0, 1, 2, … tokens of the phrases form separate banks, and the K beams are
allocated to the banks in turn, so candidates with a forced token do not compete with those without.
A candidate may end only in bank 0, and is dropped if it cannot complete the phrases before its
length limit.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.beam_search import FinishedBeams, processed_log_probs
from trifold.generate.decoding import DecodingState, SearchSetup, refuse_nan
from trifold.generate.processors import NEVER
from trifold.generate.stopping import Hypothesis, StoppingCriteria

# The maximum number of unmet constraints for which the shortest completion is computed exactly.
EXACT = 4
State = tuple[tuple[int, ...] | None, ...]
"""For each constraint: the number of matched tokens of each of its phrases, or None if the
constraint is met.
"""


class PhraseConstraints:
    """Tracks which phrases a text contains. A constraint is a list of phrases of which one must
    appear.

    Each phrase is matched by the automaton of Knuth, Morris & Pratt (1977): its state is the length
    of the longest prefix of the phrase that the text ends with.
    """

    def __init__(self, force_words_ids: Sequence[Any]) -> None:
        """force_words_ids: the setting, where a constraint with one phrase may be given as that
        phrase.
        """
        constraints = [[each] if isinstance(each[0], int) else each for each in force_words_ids]
        self.constraints = [
            [tuple[int, ...](phrase) for phrase in phrases] for phrases in constraints
        ]
        self.start: State = tuple((0,) * len(phrases) for phrases in self.constraints)
        self._matched = cache(_matched)
        self.missing = cache(self._missing)

    def after(self, state: State, token: int) -> State:
        """The state after one more token."""
        following: list[tuple[int, ...] | None] = []
        for phrases, progress in zip(self.constraints, state, strict=True):
            if progress is not None:
                steps = zip(phrases, progress, strict=True)
                progress = tuple(self._matched(phrase, done, token) for phrase, done in steps)
                is_met = any(
                    done == len(phrase) for phrase, done in zip(phrases, progress, strict=True)
                )
                progress = None if is_met else progress
            following.append(progress)
        return tuple(following)

    def advances(self, state: State) -> set[int]:
        """The tokens that continue a phrase of an unmet constraint."""
        return {
            phrase[done]
            for phrases, progress in zip(self.constraints, state, strict=True)
            if progress is not None
            for phrase, done in zip(phrases, progress, strict=True)
        }

    def _missing(self, state: State) -> int:
        """The number of tokens that complete all constraints; 0 if all are met. One of `advances`
        always reduces it.

        Exact for few unmet constraints, where phrases may overlap; for many, the sum without
        overlaps.
        """
        if sum(progress is not None for progress in state) > EXACT:
            return self._missing_without_overlap(state)
        reached = [state]
        visited = {state}
        steps = 0
        while not any(all(progress is None for progress in each) for each in reached):
            following = [
                self.after(each, token) for each in reached for token in sorted(self.advances(each))
            ]
            reached = [each for each in dict.fromkeys(following) if each not in visited]
            visited.update(reached)
            steps += 1
        return steps

    def _missing_without_overlap(self, state: State) -> int:
        """The phrase with the most progress first, the others from their start."""
        total = saved = 0
        for phrases, progress in zip(self.constraints, state, strict=True):
            if progress is None:
                continue
            shortest = min(map(len, phrases))
            nearest = min(
                len(phrase) - done for phrase, done in zip(phrases, progress, strict=True)
            )
            total = total + shortest
            saved = max(saved, shortest - nearest)
        return total - saved


def _matched(phrase: tuple[int, ...], done: int, token: int) -> int:
    """The length of the longest prefix of `phrase` that a text ends with after `done` tokens of it
    and `token`.
    """
    text = (*phrase[:done], token)
    return next(n for n in range(len(text), -1, -1) if text[len(text) - n :] == phrase[:n])


class _Candidate(NamedTuple):
    """A row extended by one token."""

    score: float
    row: int
    token: int
    state: State
    missing: int


def constrained_beam_search(state: DecodingState, setup: SearchSetup) -> list[list[Hypothesis]]:
    """The finished outputs of each sentence, best first, at most `num_beams`; each contains all
    phrases.

    Forced phrases take precedence over forbidden tokens. Raises UsageError if the phrases exceed a
    row's length limit.
    """
    config = setup.config
    assert config.force_words_ids is not None
    tracker = PhraseConstraints(config.force_words_ids)
    beams = config.num_beams
    _check(tracker, setup.stopping, state.limits)
    finished = FinishedBeams(setup, len(state.sentences), beams)
    state.expand(beams)
    states = [tracker.start] * len(state.logits)
    scores = state.logits.new_full((len(state.sentences), beams), NEVER)
    scores[:, 0] = 0
    while True:
        length = state.generated + 1
        pool = _continuations(state, setup, scores, states, tracker)
        following = []
        sentences = zip(pool, state.sentences.tolist(), state.limits.tolist(), strict=True)
        for candidates, number, limit in sentences:
            feasible = [each for each in candidates if each.missing <= limit - length]
            chosen = _finish_and_choose(state, finished, number, feasible, is_full=length == limit)
            best = max((each.score for each in chosen), default=NEVER)
            following.append(chosen if finished.can_improve(number, length, limit, best) else [])
        remaining = [index for index, chosen in enumerate(following) if chosen]
        setup.on_step(length, len(remaining))
        if not remaining:
            return finished.outputs

        # With fewer candidates than beams, copies of the first one complete the rows; they are
        # never continued.
        flat: list[_Candidate] = []
        for index in remaining:
            copy = following[index][0]._replace(score=NEVER)
            flat += [*following[index], *[copy] * (beams - len(following[index]))]
        device = state.logits.device
        scores = torch.tensor([each.score for each in flat], device=device).view(
            len(remaining), beams
        )
        states = [each.state for each in flat]
        state.advance(
            torch.tensor([each.token for each in flat], device=device),
            torch.tensor([each.row for each in flat], device=device),
            torch.tensor(remaining, device=device),
        )


def _continuations(
    state: DecodingState,
    setup: SearchSetup,
    scores: Tensor,
    states: list[State],
    tracker: PhraseConstraints,
) -> list[list[_Candidate]]:
    """For each sentence, best first: the best continuations of each row, and all that continue a
    phrase.

    Only rows that miss nothing may end.
    """
    unprocessed = state.logits.log_softmax(-1)
    log_probs = processed_log_probs(state, setup)
    (sentences, beams), ends = scores.shape, setup.stopping.ids
    open_rows = [row for row, each in enumerate(states) if tracker.missing(each)]
    if open_rows:
        rows = torch.tensor(open_rows, device=scores.device)[:, None]
        log_probs[rows, torch.tensor([ends], dtype=torch.long, device=scores.device)] = NEVER
    forced = [(row, token) for row in open_rows for token in sorted(tracker.advances(states[row]))]
    values: dict[tuple[int, int], float] = {}
    before = scores.flatten()
    if forced:
        index = torch.tensor(forced, device=scores.device).unbind(1)
        found = torch.where(log_probs[index] > NEVER, log_probs[index], unprocessed[index])
        values |= zip(forced, (before[index[0]] + found).tolist(), strict=True)
    total = log_probs.add_(before[:, None])
    count = min((1 + len(ends)) * beams, total.shape[-1])
    best, tokens = total.topk(count)  # enough of each row for the best of all rows
    refuse_nan(best)
    for row, (row_scores, row_tokens) in enumerate(
        zip(best.tolist(), tokens.tolist(), strict=True)
    ):
        for score, token in zip(row_scores, row_tokens, strict=True):
            values.setdefault((row, token), score)

    pool: list[list[_Candidate]] = [[] for _ in range(sentences)]
    for (row, token), score in values.items():
        if score > NEVER:
            after = tracker.after(states[row], token)
            pool[row // beams].append(_Candidate(score, row, token, after, tracker.missing(after)))
    return [sorted(each, key=lambda one: one.score, reverse=True) for each in pool]


def _finish_and_choose(
    state: DecodingState,
    finished: FinishedBeams,
    number: int,
    pool: list[_Candidate],
    *,
    is_full: bool,
) -> list[_Candidate]:
    """Finish the outputs that end among the best K of bank 0; return the K candidates that
    continue, best first.
    """
    setup = finished.setup
    device = state.tokens.device
    beams = setup.config.num_beams
    stopping = setup.stopping
    tokens = torch.tensor([each.token for each in pool], dtype=torch.long, device=device)
    rows = torch.tensor([each.row for each in pool], dtype=torch.long, device=device)
    found = stopping.completes_string(state.generated_tokens, tokens, rows)
    stopped = dict(zip(pool, found.tolist(), strict=True))
    ended = {each for each in pool if is_full or stopped[each] or each.token in stopping.ids}

    banks: dict[int, list[_Candidate]] = {}
    for each in pool:
        banks.setdefault(each.missing, []).append(each)
    for each in banks.get(0, [])[:beams]:
        if each in ended:
            before = state.generated_tokens(torch.tensor([each.row], device=device))[0].tolist()
            score = each.score / setup.divisor(state.generated + 1)
            finished.add(
                number, stopping.hypothesis(before, each.token, score, stopped[each], is_full)
            )
    open_banks = [[each for each in bank if each not in ended] for _, bank in sorted(banks.items())]
    chosen = [bank[rank] for rank in range(beams) for bank in open_banks if rank < len(bank)]
    return sorted(chosen[:beams], key=lambda each: each.score, reverse=True)


def _check(tracker: PhraseConstraints, stopping: StoppingCriteria, limits: Tensor) -> None:
    tokens = {token for phrases in tracker.constraints for phrase in phrases for token in phrase}
    if ends := tokens & set(stopping.ids):
        raise UsageError(
            f"force_words_ids contains {min(ends)}, which ends an output: leave it out"
        )
    needed = tracker.missing(tracker.start)
    for row, limit in enumerate(limits.tolist()):
        if needed > limit:
            raise UsageError(
                f"row {row} may get {limit} tokens, and the forced words need {needed}: raise "
                "max_new_tokens"
            )
