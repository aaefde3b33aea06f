"""Base of all settings classes: frozen, typed; an unknown key is an error that names the nearest
valid one.
"""

import difflib
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, get_origin

from annotated_types import Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from trifold.errors import MAX_LINES, SettingsError, wrapped
from trifold.jsonfiles import lone_surrogate

# pydantic's `loc` of an error: keys from the outermost group inwards.
Location: TypeAlias = tuple[int | str, ...]


MAX_NUMBER = 2**31 - 1  # of integers without a limit of their own; products of two fit into int64


class Conflict(ValueError):
    """Settings of a group that exclude each other.

    text: which ones. ways: keys, and values that resolve the conflict; one of them suffices. The
    first one that is a default gives way, see `Settings.settle`. remedy: in the message, by
    default the ways.
    """

    def __init__(self, text: str, ways: Mapping[str, Any], remedy: str = "") -> None:
        values = " or ".join(f"{key}: {as_yaml(value)}" for key, value in ways.items())
        default_remedy = f"set {values}"
        super().__init__(f"{text}; {remedy or default_remedy}")
        self.text = text
        self.ways = ways


class Settings(BaseModel):
    """Base of every settings class. Instances are immutable, have no unknown keys, and their
    numbers are finite. Invalid arguments raise SettingsError.
    """

    # Field that holds a dict -> its usual keys, which errors about unknown keys name.
    usual_keys: ClassVar[Mapping[str, Sequence[str]]] = {}

    # The minimum length makes pydantic check that strings are valid Unicode.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, str_min_length=0
    )

    @field_validator("*")
    @classmethod
    def _check_integers(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject integers that no size, length or count has, unless the field states its limit."""
        if isinstance(value, str | float | bool | None):
            return value
        field = cls.model_fields.get(info.field_name or "")
        limits = [] if field is None else [type(limit) for limit in field.metadata]
        if Le not in limits and Lt not in limits:
            for number in _integers(value):
                if abs(number) > MAX_NUMBER:
                    raise ValueError(
                        f"{_represent(number)} is too large; at most {MAX_NUMBER:,} is possible"
                    )
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any], at: str = "") -> Self:
        """Validate plain values, as read from YAML; `at` is the dotted key of the group.

        Raises SettingsError with one line per wrong key: its dotted name, what is wrong, and the
        remedy.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _describe(cls, error, at) from None

    if not TYPE_CHECKING:  # which would hide the types of the arguments

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _describe(type(self), error) from None

        # Groups inside of others are validated without it, so that an error has its whole key.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def settle(cls, values: dict[str, Any], chosen: Collection[str], at: str) -> Iterator[str]:
        """Let defaults in `values` give way to settings that exclude them. A line for each.

        chosen: keys that a user has set; they keep their values, and `parse` reports the conflict.
        """
        kept = set(chosen)
        while (conflict := _find_conflict(cls, values)) is not None:
            key = next((key for key in conflict.ways if key not in kept), None)
            if key is None:
                return
            values[key] = conflict.ways[key]
            kept.add(key)
            yield f"{conflict.text}; the default gives way: {at}.{key}={as_yaml(values[key])}"


def _integers(value: Any) -> Iterator[int]:
    """The integers in a value, and in its lists and groups of plain values."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _integers(item)
    elif isinstance(value, dict):
        yield from _integers([*value.values()])


def _find_conflict(cls: type[Settings], values: Mapping[str, Any]) -> Conflict | None:
    """The conflict of the settings of a group, if nothing else is wrong with them."""
    try:
        cls.model_validate(values)
    except ValidationError as error:
        for problem in error.errors():
            raised = problem.get("ctx", {}).get("error")
            if not problem["loc"] and isinstance(raised, Conflict):  # of the group itself
                return raised
    return None


def _describe(cls: type[Settings], error: ValidationError, at: str = "") -> SettingsError:
    """The error with one line per wrong key of the group `at`."""
    lines: dict[str, str] = {}
    for problem in error.errors():  # a union reports an error for each of its members
        key = ".".join(filter(None, [at, *_walk(cls, problem["loc"])[0]]))
        explanation = ""
        if len(lines) < MAX_LINES:  # later lines are not printed
            explanation = _explain(cls, problem)
        # Of several unknown keys, only the first one is followed by the list of `nearest`.
        explanation, label, known = explanation.partition("; known keys: ")
        if known and not any(line.endswith(known) for line in lines.values()):
            explanation += label + known
        # The message of a nested `parse` already begins with the key.
        if key and not explanation.startswith((f"{key}.", f"{key}: ")):
            explanation = f"{key}: {explanation}"
        lines.setdefault(key, explanation)
    return SettingsError("\n".join(lines.values()))


def as_yaml(value: Any) -> str:
    """A value as in a recipe."""
    return value if isinstance(value, str) else json.dumps(value)


def warn(line: str) -> None:
    """Print a warning to stderr."""
    print(wrapped(f"warning: {line}"), file=sys.stderr)


def nearest(value: str, known: list[str], kind: str = "names") -> str:
    """End of an error message about an unknown value: the nearest valid one, or all of them."""
    return similar(value, known, 0.4) or f"; known {kind}: {', '.join(sorted(known))}"


def similar(value: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """End of an error message about an unknown value: the name that it begins, or a similar one;
    empty without one.
    """
    names = sorted(known, key=lambda name: (len(name), name))
    begun = [name for name in names if len(value) > 1 and name.startswith(value)]
    close = begun or difflib.get_close_matches(value, names, n=1, cutoff=0.8)
    close = close or [name for name in reversed(names) if value.startswith(f"{name}-")]
    close = close or difflib.get_close_matches(value, names, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def _walk(cls: type[Settings], path: Location) -> tuple[list[str], type[Settings] | None]:
    """The keys of a path, and the settings class at its end; None if it ends in a plain value.

    After a key that holds one of several classes, the path contains the `kind` of the class; after
    one that holds many, the key or the number of one of them.
    """
    keys: list[str] = []
    inner: type[Settings] | None = cls
    parts = list(map(str, path))
    while parts and inner is not None:
        field = inner.model_fields.get(parts[0])
        members = _settings_classes(field.annotation) if field else []
        keys.append(parts.pop(0))
        if parts and field and members and get_origin(field.annotation) in (dict, list):
            keys.append(parts.pop(0))
        kinds = {_kind(member): member for member in members}
        if len(kinds) > 1 and parts and parts[0] in kinds:
            inner = kinds[parts.pop(0)]
        else:
            inner = next(iter(members), None)
    return keys, inner


def _meant_key(cls: type[Settings], path: Location) -> str | None:
    """The dotted name of the key that an unknown one, at the end of this path, probably means: one
    of the same name in another group, else one of similar letters in this group.
    """
    *groups, key = map(str, path)
    inner = _walk(cls, tuple(groups))[1] or cls
    same = [*_usual_keys(inner, key, groups)]
    for group, members in _inner_groups(cls):
        if key in members.model_fields:
            same.append(f"{group}.{key}")
        same += _usual_keys(members, key, [group])
    if same:
        return same[0]
    if similar(key, inner.model_fields, 0.8):
        return None  # which `nearest` names
    deeper = (
        ".".join([*groups, group, key])
        for group, members in _inner_groups(inner)
        if key in members.model_fields
    )
    return next(deeper, None)


def _inner_groups(cls: type[Settings]) -> Iterator[tuple[str, type[Settings]]]:
    """The fields that hold settings of one class, and the class."""
    for name, field in cls.model_fields.items():
        members = _settings_classes(field.annotation)
        if len(members) == 1:
            yield name, members[0]


def _usual_keys(cls: type[Settings], key: str, groups: list[str]) -> Iterator[str]:
    """The dotted names of usual keys of dicts in a group that are `key`, but for a letter."""
    for name, keys in cls.usual_keys.items():
        for meant in difflib.get_close_matches(key, keys, n=1, cutoff=0.8):
            yield ".".join([*groups, name, meant])


def _explain(cls: type[Settings], problem: Any) -> str:
    match problem["type"]:
        case "extra_forbidden":
            inner = _walk(cls, problem["loc"][:-1])[1] or cls
            key = str(problem["loc"][-1])
            if dotted := _meant_key(cls, problem["loc"]):
                return f"unknown key; did you mean {dotted!r}?"
            return f"unknown key{nearest(key, list(inner.model_fields), 'keys')}"
        case "missing":
            return "a value is required"
        case "model_type" | "model_attributes_type":
            return f"a group of keys is required, got {_represent(problem['input'])}"
        case "string_unicode":
            return f"{problem['input']!r:.60} contains {lone_surrogate(problem['input'])}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case "union_tag_invalid":
            tag, (*path, group) = problem["ctx"]["tag"], problem["loc"]
            owner = _walk(cls, tuple(path))[1] or cls
            members = _settings_classes(owner.model_fields[str(group)].annotation)
            kinds = [_kind(member) for member in members]
            return f"kind {tag!r} is not known{nearest(tag, kinds, 'kinds')}"
        case _:
            # Bounds such as 1e-30 are printed with all their digits.
            message = re.sub(
                r"\d[\d.]{20,}", lambda bound: f"{float(bound[0]):g}", problem["msg"].lower()
            )
            return f"{message}, got {_represent(problem['input'])}"


def _represent(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except ValueError:
        return "an integer of thousands of digits"


def _kind(cls: type[Settings]) -> str:
    """The value of `kind` that selects this class; its name if it has no `kind`."""
    if "kind" not in cls.model_fields:
        return cls.__name__
    return str(cls.model_fields["kind"].default)


def _settings_classes(annotation: Any) -> list[type[Settings]]:
    """The settings classes in an annotation, in order."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    members = getattr(annotation, "__args__", ())
    return [cls for member in members for cls in _settings_classes(member)]
