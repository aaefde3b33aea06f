"""Random rows for corruptions: ids, free tokens, word and sentence starts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

MASK = 4
SPECIAL = 10  # ids below are special
SENTINELS = np.arange(1000, 1200)


@st.composite
def rows(draw, largest=80):
    """(ids, free, word starts) of any length, including 0, with special tokens anywhere."""
    size = draw(st.integers(0, largest))
    seed = draw(st.integers(0, 2**32 - 1))
    share = draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]))
    rng = np.random.default_rng(seed)
    special = rng.random(size) < share
    ids = np.where(special, rng.integers(5, SPECIAL, size), rng.integers(SPECIAL, 500, size))
    starts = rng.random(size) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    return ids.astype(np.int64), ids >= SPECIAL, starts


def long_row(size=2000, seed=3):
    """A row with special tokens at its ends only, and words of one to three tokens."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(SPECIAL, 500, size)
    ids[[0, -1]] = 5
    return ids, ids >= SPECIAL, rng.random(size) < 0.6
