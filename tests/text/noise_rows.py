"""Random rows for corruptions: ids, free tokens, word and sentence starts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from trifold.text.corruption import MASK_CHOICES, Replacement, mask_tokens

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


def mask_row(kind, ids, free, starts, rng, rate=0.15):
    """A masked row; tokens that are not special replace some of the others."""
    positions = MASK_CHOICES[kind](free, starts, rate, rng)
    return mask_tokens(
        ids, positions, rng, Replacement(MASK, np.arange(SPECIAL, 500)), per_span=kind == "spans"
    )


def restored(inputs, targets, sentinels):
    """The row before span corruption."""
    heads = np.flatnonzero(np.isin(targets, sentinels))
    bounds = zip(heads, np.append(heads, len(targets))[1:], strict=True)
    spans = {int(targets[head]): targets[head + 1 : end].tolist() for head, end in bounds}
    return [token for each in inputs.tolist() for token in spans.get(each, [each])]
