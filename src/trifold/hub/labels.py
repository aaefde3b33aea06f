"""What the classes of a head are called, and what their logits mean: three keys of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.nn.config import ProblemType

LABEL_KEYS = frozenset({"n_labels", "label_names", "problem_type"})  # ours, which these keys say
MOST_CLASSES = 2**20  # beyond any model in use


def labels_to_ours(values: Mapping[str, Any], usual: int = 2) -> dict[str, Any]:
    """How many classes a file's sequence or token head tells apart, their names, and the kind of the problem.

    `label2id` says nothing more than `id2label`. Raises SettingsError for names that do not number the classes from 0
    or are not as many as `num_labels`, for a kind that is not known, and for absurdly many classes.
    """
    names, number, problem = (
        _names(values.get("id2label")),
        values.get("num_labels"),
        values.get("problem_type"),
    )
    if names and isinstance(number, int) and number != len(names):
        # Of versions of the reference some follow the one, and some the other.
        raise SettingsError(f"num_labels: {number} contradicts id2label, which names {len(names)} classes")
    count = len(names) if names else number if isinstance(number, int) else usual
    if count > MOST_CLASSES:
        raise SettingsError(f"num_labels: {count} classes are too many; at most {MOST_CLASSES:,} are read")
    if problem is not None and problem not in get_args(ProblemType):
        raise SettingsError(
            f"problem_type: {problem!r} is not known; known: {', '.join(get_args(ProblemType))}"
        )
    plain = names == tuple(f"LABEL_{number}" for number in range(len(names)))
    return {"n_labels": count, "label_names": None if plain else names, "problem_type": problem}


def labels_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back."""
    said: dict[str, object] = {
        "id2label": {str(number): name for number, name in enumerate(config.labels)},
        "label2id": {name: number for number, name in enumerate(config.labels)},
    }
    return said if config.problem_type is None else said | {"problem_type": config.problem_type}


def _names(named: object) -> tuple[str, ...]:
    """The names in the order of their numbers; none where the file gives none."""
    if named is None:
        return ()
    if not isinstance(named, Mapping):
        raise SettingsError(f"id2label: an object of numbers and names is required, got {named!r:.60}")
    by_number = {int(key): name for key, name in named.items() if str(key).isdecimal()}
    if sorted(by_number) != [*range(len(named))]:
        raise SettingsError(
            f"id2label: its keys are not the numbers 0 to {len(named) - 1}, each of them once"
        )
    for number, name in by_number.items():
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise SettingsError(f"id2label.{number}: {name!r:.60} is no name of a class")
    return tuple(str(by_number[number]) for number in range(len(named)))
