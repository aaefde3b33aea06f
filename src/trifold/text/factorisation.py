"""Permutation language modelling: which tokens are asked for, and in which order (Yang et al. 2019, sections 2.2-2.3).

    max E_z Σ_{t > c} log P(x_{z_t} | x_{z_1}, …, x_{z_{t-1}})

Of an order z of all tokens only the last 1/K is asked for (partial prediction); the others come first, and since no
loss looks at them they may all see each other. A row's order is told by ranks: 0 for these, 1, 2, … for the tokens that
are asked for. A token sees those of its own rank and before; a question sees those before it.
"""

from __future__ import annotations

import numpy as np

from trifold.text.spans import Flags, Ids, Random, by_chance


def last_of_order(free: Flags, share: int, longest: int, rng: Random) -> Ids:
    """The places of the last 1/share of a random order: any tokens; `longest` is not looked at."""
    places = np.flatnonzero(free)
    return np.asarray(rng.permutation(places)[: by_chance(len(places) / share, rng)], dtype=np.int64)


def spans_in_context(free: Flags, share: int, longest: int, rng: Random) -> Ids:
    """The places of spans of 1 to `longest` tokens, each anywhere within share times as many tokens of its own; of what
    is left at the end of a row a share is taken too (section 3.1: K = 6, at most 5).
    """
    places, chosen, start = np.flatnonzero(free), [], 0
    while start < len(places):
        length = int(rng.integers(1, longest + 1))
        room = length * share
        if room > len(places) - start:
            room = len(places) - start
            length = by_chance(room / share, rng)
        first = start + int(rng.integers(room - length + 1))
        chosen.append(places[first : first + length])
        start += room
    return np.concatenate([np.zeros(0, np.int64), *chosen])


ASKING = {"spans": spans_in_context, "tokens": last_of_order}


def ranked(places: Ids, size: int, rng: Random) -> Ids:
    """(size,) ranks: 1, 2, … at these places, in an order drawn now; 0 elsewhere."""
    ranks = np.zeros(size, np.int64)
    ranks[rng.permutation(places)] = np.arange(1, len(places) + 1)
    return ranks
