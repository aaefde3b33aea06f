"""Which training rows are held out for validation.

Rows that belong together are held out together: those with an equal text, and those of one value
of `data.group`. The labels of the held-out rows have about the shares that they have in all rows.
With `data.time`, the latest rows are held out.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

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
        return [*self.texts, *([] if self.groups is None else [self.groups])]


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


def normalized(text: str) -> str:
    """The text without differences of case and space."""
    return " ".join(text.casefold().split())


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
    return max(1, round(count * total)) if isinstance(count, float) else count


def _can_separate(
    groups: list[list[int]], count: HoldOut, seed: int, noun: str, traits: Traits
) -> bool:
    """Whether there are enough different texts for about the requested number of rows."""
    if isinstance(count, str):
        return int(count.rpartition("/")[2]) <= len(groups)
    total = sum(map(len, groups))
    size = _size(count, total)
    held = len(_drawn(groups, count, seed, noun, traits))
    return held < total and abs(held - size) <= size / 2


def _divide_equal(total: int, count: HoldOut, seed: int, noun: str, traits: Traits) -> Division:
    """Rows of too few different texts, which are on both sides."""
    found = divide(total, count, seed, noun, traits._replace(texts=()))
    texts = [*zip(*traits.texts, strict=True)]
    kept = {texts[row] for row in found.kept}
    return found._replace(known=sum(texts[row] in kept for row in found.held))


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

    for each in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(each):
            if key is not None:
                one, other = root(row), root(first.setdefault(key, row))
                parent[max(one, other)] = min(one, other)
    found: dict[int, list[int]] = defaultdict(list)
    for row in range(total):
        found[root(row)].append(row)
    return list(found.values())


def _drawn(
    groups: list[list[int]], count: HoldOut, seed: int, noun: str, traits: Traits
) -> set[int]:
    """The rows of the groups that are held out."""
    total = sum(map(len, groups))
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
    quotas = _quotas([sum(map(len, each)) for each in strata], size)
    return set().union(*map(_take, strata, quotas))


def _fold(shuffled: list[list[int]], fold: str, noun: str, traits: Traits) -> set[int]:
    number, folds = map(int, fold.removeprefix("fold:").split("/"))
    if folds > len(shuffled):
        what = noun if all(len(group) == 1 for group in shuffled) else f"groups of {noun}"
        raise DataError(
            f"data.holdout: {folds:,} folds of {len(shuffled):,} {what}; use fewer folds"
        )
    ordered = [group for each in _strata(shuffled, traits.label) for group in each]
    return {row for group in ordered[number - 1 :: folds] for row in group}


def _strata(shuffled: list[list[int]], label: Keys | None) -> list[list[list[int]]]:
    """The groups by the most frequent label of their rows."""
    if label is None:
        return [shuffled]
    found: dict[Hashable, list[list[int]]] = defaultdict(list)
    for group in shuffled:
        found[Counter(label[row] for row in group).most_common(1)[0][0]].append(group)
    return list(found.values())


def _quotas(sizes: list[int], size: int) -> list[int]:
    """Shares of `size` in proportion to the sizes, by the largest remainders."""
    exact = [each * size / sum(sizes) for each in sizes]
    quotas = [int(each) for each in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda number: quotas[number] - exact[number])
    for number in by_remainder[: size - sum(quotas)]:
        quotas[number] += 1
    return quotas


def _take(groups: list[list[int]], quota: int) -> set[int]:
    """The rows of the last groups, until they are as close to the quota as groups allow."""
    taken: set[int] = set()
    for group in reversed(groups):
        if 2 * (quota - len(taken)) >= len(group):
            taken.update(group)
    return taken


def _take_latest(groups: list[list[int]], quota: int) -> set[int]:
    """The rows of the last groups, of which none is left out."""
    taken: set[int] = set()
    while groups and 2 * (quota - len(taken)) >= len(groups[-1]):
        taken.update(groups.pop())
    return taken
