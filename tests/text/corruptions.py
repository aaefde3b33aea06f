"""Random rows (ids, free tokens, word or sentence starts), and every corruption as a function of a
row.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import strategies as st

from trifold.text.corruption import (
    MASK_CHOICES,
    NOISES,
    PREDICTION_CHOICES,
    NoiseInput,
    Replacement,
    apply_noises,
    corrupt_spans,
    mask_tokens,
)

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


def _noise(kind, ids, free, starts, rng, rate):
    return NOISES[kind](NoiseInput(ids, free, starts), rng, rate, MASK)


def _all_noises(ids, free, starts, rng, rate):
    return apply_noises(NoiseInput(ids, free, starts), rng, dict.fromkeys(NOISES, rate), MASK)


def _sentinels(ids, free, starts, rng, rate):
    return corrupt_spans(ids, free, rng, SENTINELS, min(rate, 0.9), 3.0)


def _predicted(kind, ids, free, starts, rng, rate):
    return (PREDICTION_CHOICES[kind](free, round(1 / rate), 5, rng),)


# (ids, free, starts, generator, rate) -> arrays; the first are the changed ids or the chosen
# positions
CORRUPTIONS = {
    **{f"mask {kind}": partial(mask_row, kind) for kind in MASK_CHOICES},
    **{kind: partial(_noise, kind) for kind in NOISES},
    "all noises": _all_noises,
    "sentinels": _sentinels,
    **{f"predict {kind}": partial(_predicted, kind) for kind in PREDICTION_CHOICES},
}
