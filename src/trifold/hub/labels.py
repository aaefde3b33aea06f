"""Class names, number of classes and problem type of a head, in config.json."""

from collections.abc import Mapping
from typing import Any, get_args

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.nn.config import MAX_CLASSES, ProblemType


def labels_to_ours(values: Mapping[str, Any], usual: int = 2) -> dict[str, Any]:
    """`n_labels`, `label_names` and `problem_type` of a config.json; `usual` is the family's number
    of classes.

    `label2id` repeats `id2label` and is ignored. Raises SettingsError if the names are not numbered
    from 0 or contradict `num_labels`, for an unknown problem type, and for implausibly many
    classes.
    """
    names = _read_names(values.get("id2label"))
    number = values.get("num_labels")
    problem = values.get("problem_type")
    if names and isinstance(number, int) and number != len(names):
        # Versions of `transformers` differ in which one they follow.
        raise SettingsError(
            f"num_labels: {number} contradicts id2label, which names {len(names)} classes"
        )
    count = usual
    if names:
        count = len(names)
    elif isinstance(number, int):
        count = number
    if count > MAX_CLASSES:
        raise SettingsError(
            f"num_labels: {count} classes are too many; at most {MAX_CLASSES:,} are read"
        )
    if problem is not None and problem not in get_args(ProblemType):
        raise SettingsError(
            f"problem_type: {problem!r} is not known; known: {', '.join(get_args(ProblemType))}"
        )
    plain = names == tuple(f"LABEL_{number}" for number in range(len(names)))
    return {"n_labels": count, "label_names": None if plain else names, "problem_type": problem}


def labels_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The keys of config.json: the inverse of `labels_to_ours`."""
    keys: dict[str, object] = {
        "id2label": {str(number): name for number, name in enumerate(config.labels)},
        "label2id": {name: number for number, name in enumerate(config.labels)},
    }
    if config.problem_type is not None:
        keys["problem_type"] = config.problem_type
    return keys


def _read_names(named: object) -> tuple[str, ...]:
    """The names in the order of their numbers; empty if the file has none."""
    if named is None:
        return ()
    if not isinstance(named, Mapping):
        raise SettingsError(
            f"id2label: an object of numbers and names is required, got {named!r:.60}"
        )
    by_number = {int(key): name for key, name in named.items() if str(key).isdecimal()}
    if sorted(by_number) != [*range(len(named))]:
        raise SettingsError(f"id2label: its keys are not the numbers 0 to {len(named) - 1}")
    for number, name in by_number.items():
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise SettingsError(f"id2label.{number}: {name!r:.60} is not a class name")
    return tuple(str(by_number[number]) for number in range(len(named)))
