"""Our own format, for what fits no known family: the fields of ModelConfig, and our names of the
weights.

A folder that was converted to it records under `family` where it came from, so that it can be
converted back.
"""

from collections.abc import Mapping
from typing import Any

from trifold.hub.family import HARMLESS, Family
from trifold.hub.rows import Fields
from trifold.hub.rules import ParameterRule
from trifold.hub.unknown_keys import UnknownKeys
from trifold.nn import ModelConfig


class NativeFamily(Family):
    """A family whose keys are the fields of ModelConfig: it needs no classes, entries or
    constants. Unknown keys are errors, since nobody else writes this format.
    """

    def architecture(self, config: ModelConfig) -> str:
        return "Transformer"

    def read(self, values: Mapping[str, Any]) -> ModelConfig:
        fields = ModelConfig.model_fields
        passed = {*HARMLESS, "family"}
        return ModelConfig.parse(
            {k: v for k, v in values.items() if k in fields or k not in passed}
        )

    def unknown_keys(self, values: Mapping[str, Any], at: str = "") -> UnknownKeys:
        return UnknownKeys()

    def write(self, config: ModelConfig) -> Fields:
        return config.model_dump()

    def fits(self, config: ModelConfig) -> bool:
        return True


FAMILY = NativeFamily(
    "trifold", "Transformer", {}, (), {}, lambda config: [ParameterRule("{*path}", "{*path}")]
)
