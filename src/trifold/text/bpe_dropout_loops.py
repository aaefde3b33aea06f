"""The inner loop of BPE-dropout, compiled by numba (optional); `BPEDropout._merge` is the plain version."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_NEVER = np.int64(1 << 62)  # rank of a pair that is not a merge

Integers = NDArray[np.int64]


@njit(inline="always")
def _mix(key: Any) -> Any:
    """splitmix64, as in bpe_dropout.py."""
    key = np.uint64(key + np.uint64(0x9E3779B97F4A7C15))
    key = np.uint64((key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    key = np.uint64((key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    return np.uint64(key ^ (key >> np.uint64(31)))


@njit(inline="always")
def _find(pairs: Any, left: Any, right: Any) -> Any:
    """The index of the merge of `left` and `right`, or -1."""
    key = (np.int64(left) << np.int64(32)) | np.int64(right)
    if left < 0 or right < 0:
        return np.int64(-1)
    at = np.searchsorted(pairs, key)
    return np.int64(at) if at < len(pairs) and pairs[at] == key else np.int64(-1)


@njit(nogil=True, cache=True)
def segment(
    words: Integers,
    until_drop: Integers,
    keys: NDArray[np.uint64],
    symbols: Integers,
    starts: Integers,
    full: Integers,
    full_starts: Integers,
    pairs: Integers,
    ranks: Integers,
    results: Integers,
    log_keep: float,
    out: Integers,
    ends: Integers,
) -> None:
    """Write the pieces of every word to `out`, and the end of each word to `ends` (W,).

    words (W,) are word numbers: word w is symbols[starts[w] : starts[w + 1]], and its pieces without dropout are
    full[full_starts[w] : full_starts[w + 1]]. until_drop (W,) merges are applied before the first drop; keys (W,)
    decide later drops. pairs (M,), sorted, are left << 32 | right; ranks and results (M,) belong to them.
    """
    longest = np.int64(1)
    for w in range(len(starts) - 1):
        longest = max(longest, starts[w + 1] - starts[w])
    pieces, merge = np.empty(longest, np.int64), np.empty(longest, np.int64)
    dropped = np.zeros(longest, np.bool_)
    end = np.int64(0)
    for i in range(len(words)):
        w, left, key = words[i], until_drop[i], keys[i]
        first, count = starts[w], starts[w + 1] - starts[w]
        whole = full[full_starts[w] : full_starts[w + 1]]
        if left >= count - len(whole):
            out[end : end + len(whole)] = whole
            end += len(whole)
            ends[i] = end
            continue
        for j in range(count):
            pieces[j] = symbols[first + j]
            dropped[j] = False
        for j in range(count - 1):
            merge[j] = _find(pairs, pieces[j], pieces[j + 1])
        while True:
            best, at = _NEVER, -1
            for j in range(count - 1):
                if merge[j] >= 0 and not dropped[j] and ranks[merge[j]] < best:
                    best, at = ranks[merge[j]], j
            if at < 0:
                break
            if left == 0:
                dropped[at] = True  # until another merge is applied
                key = _mix(key)
                drawn = math.log(((key >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / log_keep
                left = np.int64(min(drawn, 2.0**62))
                continue
            left -= 1
            pieces[at] = results[merge[at]]
            count -= 1
            for j in range(at + 1, count):
                pieces[j] = pieces[j + 1]
                merge[j - 1] = merge[j]
            for j in range(count):
                dropped[j] = False
            for j in range(max(at - 1, 0), min(at + 1, count - 1)):
                merge[j] = _find(pairs, pieces[j], pieces[j + 1])
        out[end : end + count] = pieces[:count]
        end += count
        ends[i] = end
