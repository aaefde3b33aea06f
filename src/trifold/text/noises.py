"""BART's five noises (Lewis et al. 2020, section 2.2), which may follow one another; what is asked for is the original.

    permute    sentences change places
    rotate     the row begins at some token, and what stood before it follows at the end
    delete     tokens are left out; where, is for the model to find
    mask       tokens become the mask
    infill     spans, their lengths drawn from a Poisson law (λ = 3), become one mask each; one of length 0 is a mask
               where nothing was

The authors' model was trained with infill 0.3 and permute 1. Each is a pure function of a row and a random generator
that says of every token of its answer where it came from; special tokens stay, in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from trifold.text.spans import Flags, Ids, Poisson, Random, by_chance, choose, draw_spans, runs, spread


class Row(NamedTuple):
    """ids (T,), which of them may change, where sentences start, and the most tokens that may come of it."""

    ids: Ids
    free: Flags
    starts: Flags
    room: int | None = None


class Noised(NamedTuple):
    """inputs (I,), targets (T,) the row before, and the place there that each input token had; -1 for new masks."""

    inputs: Ids
    targets: Ids
    origin: Ids


def permute(row: Row, rng: Random, rate: float, mask: int) -> Noised:
    """That share of the sentences change places among each other."""
    places = np.flatnonzero(row.free)
    heads = np.flatnonzero(row.starts[places] | (np.arange(len(places)) == 0))
    order = np.arange(len(heads))
    moved = rng.permutation(len(heads))[: by_chance(rate * len(heads), rng)]
    order[moved] = rng.permutation(moved)
    sentences = np.split(np.arange(len(places)), heads[1:])
    shuffled = np.concatenate([sentences[number] for number in order]) if len(heads) else places
    return _moved(row, places, shuffled)


def rotate(row: Row, rng: Random, rate: float, mask: int) -> Noised:
    """With that probability the row begins at one of its tokens, any of them."""
    places = np.flatnonzero(row.free)
    by = int(rng.integers(len(places))) if len(places) and rng.random() < rate else 0
    return _moved(row, places, np.roll(np.arange(len(places)), -by))


def delete(row: Row, rng: Random, rate: float, mask: int) -> Noised:
    """That share of the tokens are left out."""
    stays = np.ones(len(row.ids), np.bool_)
    stays[_some(row.free, rate, rng)] = False
    return Noised(row.ids[stays], row.ids, np.flatnonzero(stays))


def mask_out(row: Row, rng: Random, rate: float, mask: int) -> Noised:
    """That share of the tokens become the mask."""
    inputs = row.ids.copy()
    inputs[_some(row.free, rate, rng)] = mask
    return Noised(inputs, row.ids, np.arange(len(inputs)))


def infill(row: Row, rng: Random, rate: float, mask: int, law: Poisson = Poisson()) -> Noised:  # noqa: B008
    """Spans that hold that share of the tokens become one mask each; they never touch.

    A mask where nothing was stands neither inside a span nor beside one, and only as far as there is room.
    """
    places = np.flatnonzero(row.free)
    lengths = draw_spans(len(places), rate, law, rng)
    new, lengths = int((lengths == 0).sum()), lengths[lengths > 0]
    first = spread(lengths, len(places), rng)
    gone, gaps = np.zeros(len(row.ids), np.bool_), np.ones(len(places) + 1, np.bool_)
    for start, length in zip(first, lengths, strict=True):
        gone[places[start : start + length]] = True
        gaps[start : start + length + 1] = False
    inputs, origin, stays = row.ids.copy(), np.arange(len(row.ids)), ~gone
    heads = runs(gone)[:, 0]
    if row.room is not None:
        new = max(0, min(new, row.room - int(stays.sum()) - len(heads)))
    inputs[heads], origin[heads], stays[heads] = mask, -1, True
    behind = np.append(places, places[-1] + 1) if len(places) else places
    here = behind[np.sort(rng.permutation(np.flatnonzero(gaps))[:new])] if new else places[:0]
    stays = np.insert(stays, here, True)
    return Noised(np.insert(inputs, here, mask)[stays], row.ids, np.insert(origin, here, -1)[stays])


Noise = Callable[[Row, Random, float, int], Noised]
# In the order in which they follow one another: sentences can be told as long as nothing is missing.
NOISES: dict[str, Noise] = {
    "permute": permute,
    "rotate": rotate,
    "delete": delete,
    "mask": mask_out,
    "infill": infill,
}


def noised(row: Row, rng: Random, rates: Mapping[str, float], mask: int) -> Noised:
    """All noises whose rate is not 0, one after the other."""
    now, origin = row, np.arange(len(row.ids))
    for name, noise in NOISES.items():
        if rates.get(name, 0.0) > 0:
            inputs, _, came = noise(now, rng, rates[name], mask)
            old = came >= 0  # what is new is a mask, which nothing changes again
            free, starts = old & now.free[came] & (inputs != mask), old & now.starts[came]
            now, origin = Row(inputs, free, starts, row.room), np.where(old, origin[came], -1)
    return Noised(now.ids, row.ids, origin)


def _some(free: Flags, rate: float, rng: Random) -> Ids:
    places = np.flatnonzero(free)
    return places[choose(np.ones(len(places), np.int64), rate, rng)]


def _moved(row: Row, places: Ids, order: Ids) -> Noised:
    origin = np.arange(len(row.ids))
    origin[places] = places[order]
    return Noised(row.ids[origin], row.ids, origin)
