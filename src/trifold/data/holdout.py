"""Which training rows are held out for validation.

Rows that belong together are held out together: those with an equal text, and those of one value
of `data.group`. The labels of the held-out rows have about the shares that they have in all rows.
With `data.time`, the latest rows are held out.
"""

import heapq
import math
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from trifold.errors import DataError

HoldOut: TypeAlias = int | float | str  # a number, a share, or a fold
Keys: TypeAlias = Sequence[Hashable]  # one for each row


class Traits(NamedTuple):
    """What rows are compared by. texts, groups: rows with an equal value in one of them stay
    together; None is equal to nothing. label, time: of each row.
    """

    texts: Sequence[Keys] = ()
    groups: Keys | None = None
    label: Keys | None = None
    time: Sequence[float] | None = None

    @property
    def keys(self) -> list[Keys]:
        if self.groups is None:
            return [*self.texts]
        return [*self.texts, self.groups]


NO_TRAITS = Traits()


class Division(NamedTuple):
    """The indices of the rows that are kept and held out, in the order of the file. moved: how many
    rows would not be on the side of their equals if rows were drawn one by one. known: how many
    held-out rows have a text of a kept one, because too few texts differ.
    """

    kept: list[int]
    held: list[int]
    moved: int = 0
    known: int = 0


# Characters without width that are no part of a word: soft hyphen, zero-width space and joiners,
# marks of direction and of byte order, variation selectors.
_INVISIBLE = re.compile(
    "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)
BINS = 10  # of numbers, by their ranks


def normalized(text: str) -> str:
    """The text without differences of case, space, width, and composition of characters."""
    if not text.isascii():
        # Letters may have other forms after the change of case (Unicode, caseless matching).
        text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text).casefold())
        text = unicodedata.normalize("NFKC", text.casefold())
    return " ".join(text.casefold().split())


def strata_of(labels: Sequence[Any]) -> Keys:
    """What keeps its share on both sides: the label of a row; of several labels the rarest one; of
    numbers with decimals the tenth of all rows, by rank, that the number is in.
    """
    if any(isinstance(label, list) for label in labels):
        sets = [label if isinstance(label, list) else [label] for label in labels]
        counts = Counter(chain.from_iterable({*names} for names in sets))
        return [min(names, key=lambda name: (counts[name], name), default=None) for names in sets]
    with suppress(ValueError):
        numbers = [float(str(label).replace(",", ".")) for label in labels]
        if all(map(math.isfinite, numbers)) and not all(map(float.is_integer, numbers)):
            first: dict[float, int] = {}
            for rank, number in enumerate(sorted(numbers)):
                first.setdefault(number, rank)
            return [BINS * first[number] // len(numbers) for number in numbers]
    return [normalized(str(label)) for label in labels]


def divide(
    total: int, count: HoldOut, seed: int, noun: str, traits: Traits = NO_TRAITS
) -> Division:
    """Hold out rows: a number of them, a share (at least one), or a fold, drawn by the seed.

    `fold:2/5` is the second of the five folds of this seed, which partition the rows. If too few
    texts differ, equal ones may be on both sides. Raises DataError if no row would be left on a
    side.
    """
    groups = _groups(total, traits.keys)
    if traits.texts and not _can_separate(groups, count, seed, noun, traits):
        return _divide_equal(total, count, seed, noun, traits)
    held = _drawn(groups, count, seed, noun, traits)
    if not 0 < len(held) < total:
        purpose = "train on" if held else "hold out"
        raise DataError(
            f"data.holdout: {count} of {total:,} {noun} leaves nothing to {purpose}, because those "
            "of one group stay on one side; change the number"
        )
    kept = [row for row in range(total) if row not in held]
    return Division(kept, sorted(held), _count_moved(groups, count, seed, noun, traits))


def _size(count: int | float, total: int) -> int:
    """How many rows are to be held out."""
    if isinstance(count, float):
        return max(1, round(count * total))
    return count


def _can_separate(
    groups: list[list[int]], count: HoldOut, seed: int, noun: str, traits: Traits
) -> bool:
    """Whether there are enough different texts for about the requested number of rows."""
    if isinstance(count, str):
        return int(count.rpartition("/")[2]) <= len(groups)
    total = _count_rows(groups)
    size = _size(count, total)
    held = len(_drawn(groups, count, seed, noun, traits))
    return held < total and abs(held - size) <= size / 2


def _divide_equal(total: int, count: HoldOut, seed: int, noun: str, traits: Traits) -> Division:
    """Hold out rows without regard to their texts, because too few differ. Equal texts may be on
    both sides; `known` counts them.
    """
    division = divide(total, count, seed, noun, traits._replace(texts=()))
    texts = [*zip(*traits.texts, strict=True)]
    kept = {texts[row] for row in division.kept}
    return division._replace(known=sum(texts[row] in kept for row in division.held))


def _count_moved(
    groups: list[list[int]], count: HoldOut, seed: int, noun: str, traits: Traits
) -> int:
    """How many rows are not on the side of their equals if rows are drawn one by one."""
    if all(len(group) == 1 for group in groups):
        return 0
    rows = [[row] for group in groups for row in group]
    alone = _drawn(sorted(rows), count, seed, noun, traits)
    counts = ((len(group), sum(row in alone for row in group)) for group in groups)
    return sum(min(held, size - held) for size, held in counts)


def _groups(total: int, keys: Sequence[Keys]) -> list[list[int]]:
    """The rows that stay together, in the order of their first ones: those that are connected by
    equal values.
    """
    parent = list(range(total))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for column in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column):
            if key is not None:
                one = root(row)
                other = root(first.setdefault(key, row))
                parent[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = defaultdict(list)
    for row in range(total):
        groups[root(row)].append(row)
    return list(groups.values())


def _drawn(
    groups: list[list[int]], count: HoldOut, seed: int, noun: str, traits: Traits
) -> set[int]:
    """The rows of the groups that are held out."""
    total = _count_rows(groups)
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    shuffled = [groups[number] for number in order]
    if isinstance(count, str):
        return _fold(shuffled, count, noun, traits)
    size = _size(count, total)
    if size >= total:
        raise DataError(
            f"data.holdout: {size:,} {noun} of {total:,} leave nothing to train on; use fewer"
        )
    if (times := traits.time) is not None:
        shuffled.sort(key=lambda group: max(times[row] for row in group))
        return _take_latest(shuffled, size)
    strata = _strata(shuffled, traits.label)
    # A label that only one text has is trained on; where most have their own, they are no classes.
    common = [stratum for stratum in strata if len(stratum) > 1]
    if sum(map(_count_rows, common)) >= max(size + 1, total * 3 / 4):
        strata = common
    return _take(strata, _quotas([*map(_count_rows, strata)], size))


def _count_rows(groups: list[list[int]]) -> int:
    return sum(map(len, groups))


def _fold(shuffled: list[list[int]], fold: str, noun: str, traits: Traits) -> set[int]:
    number, folds = map(int, fold.removeprefix("fold:").split("/"))
    if folds > len(shuffled):
        what = noun if all(len(group) == 1 for group in shuffled) else f"groups of {noun}"
        raise DataError(
            f"data.holdout: {folds:,} folds of {len(shuffled):,} {what}; use fewer folds"
        )
    sizes = [0] * folds
    rows_of_folds = [set[int]() for _ in sizes]
    for groups in _strata(shuffled, traits.label):
        # The next group, the largest first, belongs to the fold with the fewest rows.
        smallest = [(0, size, place) for place, size in enumerate(sizes)]
        heapq.heapify(smallest)
        for group in sorted(groups, key=len, reverse=True):
            of_label, size, place = smallest[0]
            heapq.heapreplace(smallest, (of_label + len(group), size + len(group), place))
            rows_of_folds[place].update(group)
            sizes[place] = size + len(group)
    return rows_of_folds[number - 1]


def _strata(shuffled: list[list[int]], label: Keys | None) -> list[list[list[int]]]:
    """The groups by the most frequent label of their rows."""
    if label is None:
        return [shuffled]
    strata: dict[Hashable, list[list[int]]] = defaultdict(list)
    for group in shuffled:
        most_frequent = Counter(label[row] for row in group).most_common(1)[0][0]
        strata[most_frequent].append(group)
    return list(strata.values())


def _quotas(sizes: list[int], size: int) -> list[int]:
    """Shares of `size` in proportion to the sizes, by the largest remainders."""
    total = sum(sizes)
    exact = [rows * size / total for rows in sizes]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda number: quotas[number] - exact[number])
    for number in by_remainder[: size - sum(quotas)]:
        quotas[number] += 1
    return quotas


def _take(strata: list[list[list[int]]], quotas: list[int]) -> set[int]:
    """The rows of the last groups of each stratum. A group is taken if that brings the number of
    rows closer to the quotas of the strata so far.
    """
    taken = set[int]()
    due = 0  # the sum of the quotas so far
    for groups, quota in zip(strata, quotas, strict=True):
        due += quota
        for group in reversed(groups):
            if 2 * (due - len(taken)) >= len(group):
                taken.update(group)
    return taken


def _take_latest(groups: list[list[int]], quota: int) -> set[int]:
    """The rows of the last groups, without a gap, as close to the quota as groups allow."""
    taken: set[int] = set()
    while groups and 2 * (quota - len(taken)) >= len(groups[-1]):
        taken.update(groups.pop())
    return taken
