"""The kinds of tasks: the settings that choose among them by `kind`, and what builds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from trifold.tasks.causal import CausalSettings
from trifold.tasks.causal_rows import causal
from trifold.tasks.task import Asked, Material
from trifold.tasks.translate import TranslateSettings
from trifold.tasks.translate_rows import translation

# Told apart by their `kind`; a recipe that says none is one of translation.
TaskSettings: TypeAlias = TranslateSettings | CausalSettings
USUAL = "translate"

# From a kind's settings and the rest of the recipe to all that is learnt from.
KINDS: dict[str, Callable[[Any, Asked], Material]] = {
    "translate": translation,
    "causal": causal,
}


def build(settings: TaskSettings, asked: Asked) -> Material:
    """Read the data, train or load the tokenizers. What is left out is counted and said.

    Raises SettingsError or DataError before anything is learnt.
    """
    return KINDS[settings.kind](settings, asked)
