"""The inner loop of BPE-dropout, compiled by numba (an extra); `MergeDropout._merge` is the same in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_NEVER = np.int64(1 << 62)  # the rank of what is no merge


@njit(inline="always")
def _mix(key: Any) -> Any:
    """splitmix64, as in dropout.py."""
    key = np.uint64(key + np.uint64(0x9E3779B97F4A7C15))
    key = np.uint64((key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    key = np.uint64((key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    return np.uint64(key ^ (key >> np.uint64(31)))


@njit(inline="always")
def _place(pairs: Any, left: Any, right: Any) -> Any:
    """Where left and right, side by side, stand among the merges, or -1."""
    wanted = (np.int64(left) << np.int64(32)) | np.int64(right)
    if left < 0 or right < 0:
        return np.int64(-1)
    at = np.searchsorted(pairs, wanted)
    return np.int64(at) if at < len(pairs) and pairs[at] == wanted else np.int64(-1)


@njit(nogil=True, cache=True)
def segment(
    words: NDArray[np.int64],
    until_drop: NDArray[np.int64],
    keys: NDArray[np.uint64],
    symbols: NDArray[np.int64],
    starts: NDArray[np.int64],
    usual: NDArray[np.int64],
    usual_starts: NDArray[np.int64],
    pairs: NDArray[np.int64],
    ranks: NDArray[np.int64],
    made: NDArray[np.int64],
    log_keep: float,
    out: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """The pieces of every word into `out`, and where each word's end into `ends` (W,).

    words (W,) are numbers of known words: word w is written symbols[starts[w] : starts[w + 1]], of which all its
    merges make usual[usual_starts[w] : usual_starts[w + 1]]. Before a merge is left out, until_drop (W,) are made;
    keys (W,) decide what comes then. pairs (M,), sorted, are left << 32 | right; ranks and made (M,) belong to them.
    """
    longest = np.int64(1)
    for w in range(len(starts) - 1):
        longest = max(longest, starts[w + 1] - starts[w])
    pieces, merge, asleep = (
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
        np.zeros(longest, np.bool_),
    )
    end = np.int64(0)
    for i in range(len(words)):
        w, left, key = words[i], until_drop[i], keys[i]
        first, count = starts[w], starts[w + 1] - starts[w]
        settled = usual[usual_starts[w] : usual_starts[w + 1]]
        if left >= count - len(settled):
            out[end : end + len(settled)] = settled
            end += len(settled)
            ends[i] = end
            continue
        for j in range(count):
            pieces[j] = symbols[first + j]
            asleep[j] = False
        for j in range(count - 1):
            merge[j] = _place(pairs, pieces[j], pieces[j + 1])
        while True:
            best, place = _NEVER, -1
            for j in range(count - 1):
                if merge[j] >= 0 and not asleep[j] and ranks[merge[j]] < best:
                    best, place = ranks[merge[j]], j
            if place < 0:
                break
            if left == 0:
                asleep[place] = True  # until another merge is made
                key = _mix(key)
                drawn = math.log(((key >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / log_keep
                left = np.int64(min(drawn, 2.0**62))
                continue
            left -= 1
            pieces[place] = made[merge[place]]
            count -= 1
            for j in range(place + 1, count):
                pieces[j] = pieces[j + 1]
                merge[j - 1] = merge[j]
            for j in range(count):
                asleep[j] = False
            for j in range(max(place - 1, 0), min(place + 1, count - 1)):
                merge[j] = _place(pairs, pieces[j], pieces[j + 1])
        out[end : end + count] = pieces[:count]
        end += count
        ends[i] = end
