"""Results that most training runs compute again: their texts in YAML, and the families that fit their
model. A run takes a third of a second, a sixth of it for these, and tests train a thousand times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trifold import recipe, yaml_dialect
from trifold.hub.family import Family
from trifold.nn import ModelConfig
from trifold.train import model_card


def keep_results() -> None:
    """Keep them in this process, and in those that are copied from it."""
    dump = kept_dump(yaml_dialect.dump)
    for module in (recipe, model_card, yaml_dialect):
        module.dump = dump  # type: ignore[attr-defined]
    Family.fits = kept_fit(Family.fits)  # type: ignore[method-assign]


def kept_dump(dump: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """`yaml_dialect.dump` that keeps its texts."""
    texts: dict[str, str] = {}

    def kept(values: Mapping[str, Any]) -> str:
        key = repr(values)
        if key not in texts:
            texts[key] = dump(values)
        return texts[key]

    return kept


def kept_fit(fits: Callable[[Family, ModelConfig], bool]) -> Callable[[Family, ModelConfig], bool]:
    """`Family.fits` that keeps its answers."""
    answers: dict[tuple[int, str], tuple[Family, bool]] = {}
    last: tuple[ModelConfig | None, str] = None, ""  # many families are tried with one config

    def kept(family: Family, config: ModelConfig) -> bool:
        nonlocal last
        described, text = last
        if described is not config:
            text = repr(config)
            last = config, text
        key = id(family), text
        if key not in answers:
            answers[key] = family, fits(family, config)  # the family lives, so its id is not reused
        return answers[key][1]

    return kept
