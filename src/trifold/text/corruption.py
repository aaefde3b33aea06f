"""Masked language models: which tokens are hidden, and what stands in their place.

    plain     single tokens                                  Devlin et al. 2019, section 3.1, task 1
    words     all tokens of a word                           the same authors' second release: whole word masking
    spans     runs of whole words, their lengths geometric   Joshi et al. 2020 (SpanBERT), section 3.1

15 % of the tokens are hidden: 80 % of these become the mask, 10 % any other token, 10 % stay what they are. Each is
a pure function of a row and a random generator, and its answer holds what gives the row back.

T tokens, M of them hidden, in S runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trifold.text.spans import Flags, Geometric, Ids, Random, choose, draw_spans, runs, spread, words


class Replacement(NamedTuple):
    """What hidden tokens become: the mask, one of the `ordinary` tokens (any that is not special), or themselves."""

    mask: int
    ordinary: Ids
    masked: float = 0.8
    random: float = 0.1


class Masked(NamedTuple):
    """inputs (T,), the hidden places (M,) in order, what stood there (M,), and the places [from, to) of runs (S, 2)."""

    inputs: Ids
    places: Ids
    targets: Ids
    spans: Ids

    @property
    def original(self) -> Ids:
        """The row before."""
        row = self.inputs.copy()
        row[self.places] = self.targets
        return row


def mask_tokens(
    ids: Ids, free: Flags, starts: Flags, rng: Random, to: Replacement, rate: float = 0.15
) -> Masked:
    """Hide single tokens; `starts` is not looked at."""
    places = np.flatnonzero(free)
    chosen = places[choose(np.ones(len(places), np.int64), rate, rng)]
    return _hidden(ids, chosen, rng, to)


def mask_words(
    ids: Ids, free: Flags, starts: Flags, rng: Random, to: Replacement, rate: float = 0.15
) -> Masked:
    """Hide whole words; what becomes of it is drawn for each of its tokens."""
    bounds = words(free, starts)
    bounds = bounds[choose(bounds[:, 1] - bounds[:, 0], rate, rng)]
    return _hidden(ids, expanded(bounds), rng, to)


def mask_spans(
    ids: Ids,
    free: Flags,
    starts: Flags,
    rng: Random,
    to: Replacement,
    rate: float = 0.15,
    law: Geometric = Geometric(),  # noqa: B008 (a value that cannot change)
) -> Masked:
    """Hide spans of whole words; what becomes of it is drawn once a span.

    The number of spans is drawn first and then each length by its law, so that short rows do not shorten spans by
    using up their 15 %. Spans never touch: the tokens at both sides of one can be seen.
    """
    bounds = words(free, starts)
    lengths = draw_spans(len(bounds), rate, law, rng)
    first = spread(lengths, len(bounds), rng)
    if not len(first):
        return _hidden(ids, np.zeros(0, np.int64), rng, to)
    places = expanded(np.stack([bounds[first, 0], bounds[first + lengths - 1, 1]], axis=1))
    return _hidden(ids, places[free[places]], rng, to, together=True)


Mask = Callable[[Ids, Flags, Flags, Random, Replacement, float], Masked]
MASKS: dict[str, Mask] = {"plain": mask_tokens, "words": mask_words, "spans": mask_spans}


def expanded(bounds: Ids) -> Ids:
    """All places of (S, 2) runs, one run after the other."""
    lengths = bounds[:, 1] - bounds[:, 0]
    shift = bounds[:, 0] - np.cumsum(lengths) + lengths
    return np.repeat(shift, lengths) + np.arange(lengths.sum())


def _hidden(ids: Ids, places: Ids, rng: Random, to: Replacement, *, together: bool = False) -> Masked:
    flags = np.zeros(len(ids), np.bool_)
    flags[places] = True
    spans = runs(flags)
    dice = rng.random(len(spans) if together else len(places))
    if together:
        dice = np.repeat(dice, spans[:, 1] - spans[:, 0])
    others = to.ordinary[rng.integers(len(to.ordinary), size=len(places))]
    inputs, targets = ids.copy(), ids[places]
    seen = np.where(dice < to.masked + to.random, others, targets)
    inputs[places] = np.where(dice < to.masked, to.mask, seen)
    return Masked(inputs, places, targets, spans)
