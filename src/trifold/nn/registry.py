"""The table of parts: which part takes each place of a model.

A config asks its parts, and the classes of parts (`nn.parts`) ask configs. This table knows
neither: it names the places, and holds the classical part of each and its variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError, ValidationInfo, ValidatorFunctionWrapHandler

# The names of the classes of `nn.parts.PLACES`, in the same order.
PLACES = (
    "embeddings",
    "positions",
    "scores",
    "attention",
    "feed_forward",
    "block",
    "rule",
    "walk",
    "logits",
)
_classical: dict[str, Any] = {}
_variants: dict[str, list[Any]] = {place: [] for place in PLACES}
_loaded: dict[str, tuple[Any, ...]] = {}
"""The parts from outside, by the name that a user gave (`nn.outside`)."""


def set_classical(part: Any) -> None:
    """Make it the part of its place that is used if the config chooses no other."""
    _classical[part.place] = part


def register(part: Any) -> None:
    """Add a variant to the table. Of several that a config chooses for one place, the last one
    counts.
    """
    _variants[part.place].append(part)


def registered() -> Iterator[Any]:
    """All variants, place by place."""
    for place in PLACES:
        yield from _variants[place]


def registered_for(place: str) -> list[Any]:
    """The variants of a place."""
    return list(_variants[place])


def chosen(place: str, config: Any) -> Any:
    """The part that a config chooses for a place."""
    for part in reversed(_variants[place]):
        if part.used(config):
            return part
    return _classical[place]


def classical(place: str) -> Any:
    """The classical part of a place."""
    return _classical[place]


def is_from_outside(part: Any) -> bool:
    """Whether a part is defined in another package."""
    return not type(part).__module__.startswith("trifold.")


# --- parts from outside, in settings --------------------------------------------------------------


def is_loaded(name: str) -> bool:
    """Whether the parts of that name are registered."""
    return name in _loaded


def check_loaded(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names. Raises ValueError if one is not registered."""
    for name in names:
        if not is_loaded(name):
            raise ValueError(
                f"{name} is not registered. A part is code, which only you can name: add "
                f"--part {name}, or call trifold.nn.load_part({name!r})"
            )
    return names


def allow_registered(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The value of a choice: that of a registered part, or one that `check` knows."""
    choices = [part.value for part in registered() if part.key == info.field_name]
    if isinstance(value, str) and value in choices:
        return value
    try:
        return check(value)
    except ValidationError as error:
        if not isinstance(value, str):
            raise
        expected = error.errors()[0]["msg"].lower()
        more = [repr(choice) for choice in choices if repr(choice) not in expected]
        if more:
            most = ", ".join([expected.replace(" or ", ", "), *more[:-1]])
            expected = f"{most} or {more[-1]}"
        raise ValueError(
            f"{expected}, got {value!r:.60}; a part of your own is named by --part MODULE"
        ) from None
