"""Our own form, for what fits no known family: the fields of ModelConfig, and our names of the weights.

A folder that was converted to it says under `family` where it came from, so that it can go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trifold.hub.family import HARMLESS, Family
from trifold.hub.rules import AnyRule, Rule
from trifold.nn import ModelConfig


def _read(values: Mapping[str, Any]) -> ModelConfig:
    known, passed = ModelConfig.model_fields, HARMLESS | {"family"}
    return ModelConfig.parse(
        {key: value for key, value in values.items() if key in known or key not in passed}
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    return [Rule("{*path}", "{*path}")]


FAMILY = Family(
    model_type="trifold",
    architecture=lambda config: "Transformer",
    fits=lambda config: True,
    write=lambda config: config.model_dump(),
    read=_read,
    rules=_rules,
    general=2,
)
