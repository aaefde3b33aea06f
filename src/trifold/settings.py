"""What every settings class shares: frozen, typed, unknown keys refused with the nearest valid one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from trifold.errors import SettingsError


class Settings(BaseModel):
    """Base of every settings class; an instance never changes and never holds a key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    @classmethod
    def parse(cls, values: Mapping[str, Any], at: str = "") -> Self:
        """Build from plain values (as YAML gives them); `at` is the dotted key they stand under.

        Raises SettingsError with one line per wrong key: its dotted name, what is wrong, and the remedy.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines: dict[str, str] = {}
            for problem in error.errors():  # a union complains once for each of its members
                key = _key(cls, problem["loc"], at)
                lines.setdefault(key, f"{key}: {_explain(cls, problem)}")
            raise SettingsError("\n".join(lines.values())) from None


def nearest(value: str, known: list[str], kind: str = "names") -> str:
    """The end of an error about an unknown value: the nearest valid one, or all of them."""
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known {kind}: {', '.join(sorted(known))}"


def _key(cls: type[Settings], path: tuple[int | str, ...], at: str) -> str:
    """The dotted key of a problem, without what pydantic appends to say which member of a union it tried."""
    parts = [at] if at else []
    inner: type[Settings] | None = cls
    for part in path:
        if inner is None:
            break
        parts.append(str(part))
        field = inner.model_fields.get(str(part))
        inner = _settings_class(field.annotation) if field else None
    return ".".join(parts) or "settings"


def _explain(cls: type[Settings], problem: Any) -> str:
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key{_nearest_key(cls, problem['loc'])}"
        case "missing":
            return "a value is required"
        case "model_type":
            return f"a group of keys is required, got {problem['input']!r}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case _:
            return f"{problem['msg'].lower()}, got {problem['input']!r}"


def _nearest_key(cls: type[Settings], path: tuple[int | str, ...]) -> str:
    return nearest(str(path[-1]), _keys_at(cls, path[:-1]), "keys")


def _keys_at(cls: type[Settings], path: tuple[int | str, ...]) -> list[str]:
    """Valid keys of the settings class found by walking `path` down from `cls` (union members by name)."""
    for part in path:
        field = cls.model_fields.get(str(part))
        inner = _settings_class(field.annotation) if field else None
        if inner is None:
            continue
        cls = inner
    return list(cls.model_fields)


def _settings_class(annotation: Any) -> type[Settings] | None:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _settings_class(argument):
            return found
    return None
