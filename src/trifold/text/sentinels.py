"""T5's span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4): spans give way to sentinels, and are asked for.

    original   Thank you for inviting me to your party last week
    input      Thank you <0> me to your party <1> week
    target     <0> for inviting <1> last

The law is that of the paper's code. Of n tokens (at least 2), round(rate · n) are noise, but at least one, and at least
one is not; they form round(noise / mean) spans, at least one. The noise is cut into so many non-empty pieces and the
rest into as many, all ways of cutting being equally likely, and the pieces alternate: the first is not noise, the last
one is. So no sentinel stands behind the last span (the paper's section 3.1.4 speaks of one; its code writes none).

Of up to some thirty tokens that makes one span, always at the end. Where rows are short documents and not, as there,
512 tokens of many, nothing but endings would be asked for: here a single span lies anywhere, all places being equally
likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trifold.text.spans import Flags, Ids, Random, runs


class Sentinelled(NamedTuple):
    """inputs: the row with a sentinel for each span; targets: each sentinel and the tokens it stands for."""

    inputs: Ids
    targets: Ids

    def original(self, sentinels: Ids) -> Ids:
        """The row before."""
        heads = np.flatnonzero(np.isin(self.targets, sentinels))
        spans = zip(heads, np.append(heads, len(self.targets))[1:], strict=True)
        pieces = {int(self.targets[head]): self.targets[head + 1 : end].tolist() for head, end in spans}
        row = [token for each in self.inputs.tolist() for token in pieces.get(each, [each])]
        return np.array(row, dtype=np.int64)


def corrupt_spans(
    ids: Ids, free: Flags, rng: Random, sentinels: Ids, rate: float = 0.15, mean: float = 3.0
) -> Sentinelled:
    """Take spans out of a row (T,); tokens that are not `free` stay, and cut a span in two.

    Raises ValueError where there are more spans than sentinels.
    """
    noise = np.zeros(len(ids), np.bool_)
    noise[np.flatnonzero(free)] = noise_mask(int(free.sum()), rng, rate, mean)
    spans = runs(noise)
    if len(spans) > len(sentinels):
        raise ValueError(f"{len(spans)} spans need as many sentinels, and there are {len(sentinels)}")
    used = sentinels[: len(spans)]
    inputs, stays = ids.copy(), ~noise
    inputs[spans[:, 0]], stays[spans[:, 0]] = used, True
    lengths = spans[:, 1] - spans[:, 0]
    targets = np.insert(ids[noise], np.cumsum(lengths) - lengths, used)
    return Sentinelled(inputs[stays], targets)


def noise_mask(tokens: int, rng: Random, rate: float, mean: float) -> Flags:
    """(tokens,) True at noise."""
    if tokens < 2:
        return np.zeros(tokens, np.bool_)
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    spans = min(max(round(noise / mean), 1), tokens - noise)
    if spans == 1:
        places = np.arange(tokens) - rng.integers(tokens - noise + 1)
        return (places >= 0) & (places < noise)
    lengths = np.stack([_pieces(tokens - noise, spans, rng), _pieces(noise, spans, rng)], axis=1).ravel()
    return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def most_spans(tokens: int, rate: float, mean: float) -> int:
    """The spans of a row of so many tokens, and so the sentinels that it needs."""
    noise = max(round(max(tokens, 2) * rate), 1)
    return max(round(noise / mean), 1)


def _pieces(items: int, count: int, rng: Random) -> Ids:
    """Lengths of `count` non-empty pieces of `items`, all ways of cutting being equally likely."""
    cuts = np.sort(rng.permutation(items - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)
