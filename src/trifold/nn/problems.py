"""What is wrong with a config: what a choice needs, and what it excludes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from trifold.nn.config import CoreConfig
from trifold.settings import Conflict, Settings, as_yaml

Problems: TypeAlias = Iterator[str | Conflict]
# Settings that belong to the task; no conflict changes them.
OF_THE_TASK = ("shape", "heads")


def default_of(config: CoreConfig, key: str) -> Any:
    """The default of a setting, as in a recipe."""
    value = type(config).model_fields[key].default
    if isinstance(value, Settings):
        return {}
    return value


def is_set(config: CoreConfig, key: str) -> bool:
    """Whether the config has such a setting, with another value than the default."""
    field = type(config).model_fields.get(key)
    return field is not None and getattr(config, key) != field.default


def excluded(config: CoreConfig, choice: str, keys: str, own: str = "") -> Problems:
    """A conflict for each of the keys that is set although the choice excludes it.

    own: the key of the choice, if it gives way to them too.
    """
    for key in keys.split():
        if is_set(config, key):
            shown = _shown(key, getattr(config, key))
            yield Conflict(f"{choice} excludes {shown}", defaults(config, key, own))


def _shown(key: str, value: Any) -> str:
    """A setting in a message; of a group only its key."""
    if isinstance(value, Settings):
        return key
    return f"{key}: {as_yaml(value)}"


def unmet(config: CoreConfig, choice: str, key: str, *values: Any, own: str = "") -> Problems:
    """A conflict if a setting has none of the values that the choice needs.

    own: the key of the choice, if it is not the choice; it gives way too.
    """
    value = getattr(config, key)
    if value in values or not is_set(config, own or choice):
        return
    ways = defaults(config, own or choice)
    if key not in OF_THE_TASK:
        ways = {key: values[0]} | ways
    needed = " or ".join(str(each) for each in values)
    yield Conflict(f"{choice} needs {key}: {needed}, not {value}", ways)


def defaults(config: CoreConfig, *keys: str) -> dict[str, Any]:
    """Ways out of a conflict: the defaults of these settings."""
    known = type(config).model_fields  # not the name of a part from outside that options choose
    return {key: default_of(config, key) for key in keys if key in known}
