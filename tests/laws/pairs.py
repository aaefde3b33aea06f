"""Counts pairs of parts: those that `ModelConfig` allows, those that a config has, and those that it
rejects, with their message. `python -m tests.laws.pairs` prints them, and proposes configs for pairs
that no config has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from tests.laws.parts import PARTS, are_alternatives, candidates, values_of

from trifold.errors import SettingsError
from trifold.nn import ModelConfig

Pair = tuple[str, str]
MOST_PARTS = 12  # of a proposed config; more would hide which of them is wrong


# What messages call parts, beside their keys and values.
WORDS = {
    "patches": "images",
    **dict.fromkeys(("relative", "relative sinusoids", "disentangled"), "offsets of scores"),
    "segment offsets": "offsets of scores",
}


class Pairs(NamedTuple):
    """All pairs of parts that are not alternatives. rejected: with the message."""

    allowed: list[Pair]
    rejected: dict[Pair, str]


def find_pairs() -> Pairs:
    """A pair is allowed if some config with both is valid; a law builds the model of its config."""
    allowed, rejected = list[Pair](), dict[Pair, str]()
    for pair in combinations(PARTS, 2):
        if are_alternatives(*pair):
            continue
        try:
            values_of(pair)
        except SettingsError:
            rejected[pair] = rejection(pair)
        else:
            allowed.append(pair)
    return Pairs(allowed, rejected)


def rejection(pair: Pair) -> str:
    """The message of a rejected pair: of the candidates, the first one that names both parts."""
    messages = list[str]()
    for values in candidates(pair):
        try:
            ModelConfig.parse(values)
        except SettingsError as error:
            messages.append(str(error))
    return max(messages, key=lambda message: sum(names_part(message, name) for name in pair))


def pairs_of(names: Iterable[str]) -> set[Pair]:
    """All pairs among the named parts."""
    ordered = sorted(names, key=list(PARTS).index)
    return set(combinations(ordered, 2))


def names_part(message: str, name: str) -> bool:
    """Whether a message names the part: one of its keys, or the group that they are in."""
    part = PARTS[name]
    words = [*part.values, *part.needs[0], WORDS.get(name, name)]
    words += [value for value in part.values.values() if isinstance(value, str)]
    return any(word in message for word in words)


def is_allowed(names: Iterable[str]) -> bool:
    """Whether a config with these parts is valid."""
    names = list(names)
    if any(are_alternatives(*pair) for pair in pairs_of(names)):
        return False
    try:
        values_of(names)
    except SettingsError:
        return False
    return True


def propose(missing: set[Pair]) -> list[list[str]]:
    """Configs that have all missing pairs: greedily, the part that adds most of them comes next."""
    proposed = []
    order = list(PARTS)
    while missing:
        counts = {name: sum(name in pair for pair in missing) for name in order}
        first = max(missing, key=lambda pair: (min(counts[n] for n in pair), pair))
        chosen, excluded = list(first), set[str]()
        while len(chosen) < MOST_PARTS:
            added = {
                name: sum(bool({(name, each), (each, name)} & missing) for each in chosen)
                for name in order
                if name not in chosen and name not in excluded
            }
            best = max(added, key=lambda name: added[name], default=None)
            if best is None or not added[best]:
                break
            if is_allowed([*chosen, best]):
                chosen.append(best)
            else:
                excluded.add(best)
        missing = missing - pairs_of(chosen)
        proposed.append(sorted(chosen, key=order.index))
    return proposed


def main() -> int:
    """Print the counts, the rejected pairs with their messages, and what is missing."""
    from tests.laws.configs import CONFIGS, parts_of

    allowed, rejected = find_pairs()
    covered = {pair for name in CONFIGS for pair in pairs_of(parts_of(name))}
    missing = set(allowed) - covered
    for pair, message in rejected.items():
        print(f"rejected: {' + '.join(pair)}: {message}")
    print(
        f"{len(PARTS)} parts, {len(CONFIGS)} configs; {len(allowed)} pairs allowed, "
        f"{len(allowed) - len(missing)} covered, {len(rejected)} rejected"
    )
    for names in propose(missing):
        print(f"missing: {', '.join(names)}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
