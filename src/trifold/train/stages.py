"""Recipes that derive from another one: other values of some keys."""

from __future__ import annotations

from typing import Any

from trifold.recipe import Recipe, set_key


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with other values of dotted keys."""
    values = recipe.model_dump()
    for key, value in changes.items():
        set_key(values, key, value)
    derived = Recipe.parse(values)
    derived.overrides.update(recipe.overrides | changes)
    return derived
