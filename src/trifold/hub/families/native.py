"""Our own format, for what fits no known family: the fields of ModelConfig, and our names of the
weights.

A folder that was converted to it records under `family` where it came from, so that it can be
converted back.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.family import HARMLESS, Family
from trifold.hub.rows import Fields
from trifold.hub.rules import ParameterRule
from trifold.hub.unknown_keys import UnknownKeys, reference_keys
from trifold.nn import ModelConfig
from trifold.settings import similar

MAX_UNKNOWN = 1000  # keys, each of which is compared with all fields


class NativeFamily(Family):
    """A family whose keys are the fields of ModelConfig: it needs no classes, entries or
    constants.

    An unknown key may select a part that this version lacks: it is an error if it resembles a
    field, if a family has it, or if its value is a group. Others, which tools add, are ignored.
    """

    def architecture(self, config: ModelConfig) -> str:
        return "Transformer"

    def read(self, values: Mapping[str, Any]) -> ModelConfig:
        fields = ModelConfig.model_fields
        passed = {*HARMLESS, "family", *self.unknown_keys(values).ignored}
        return ModelConfig.parse(
            {k: v for k, v in values.items() if k in fields or k not in passed}
        )

    def unknown_keys(self, values: Mapping[str, Any], at: str = "") -> UnknownKeys:
        fields = ModelConfig.model_fields
        unknown = UnknownKeys()
        known = {*fields, *HARMLESS, "family"}
        others = [key for key, value in values.items() if key not in known and value is not None]
        if len(others) > MAX_UNKNOWN:
            raise SettingsError(
                f"{len(others):,} unknown keys; remove them (at most {MAX_UNKNOWN:,})"
            )
        for key in others:
            value = values[key]
            selects = key in _keys_of_families() or similar(key, fields, 0.8)
            if not selects and not isinstance(value, dict | list):
                unknown.add(key, value, None, at)
        return unknown

    def write(self, config: ModelConfig) -> Fields:
        return config.model_dump()

    def fits(self, config: ModelConfig) -> bool:
        return True


@cache
def _keys_of_families() -> frozenset[str]:
    """The keys of config.json that the reference reads for any family."""
    families = reference_keys().families.values()
    return frozenset(reference_keys().shared).union(*families)


FAMILY = NativeFamily(
    "trifold", "Transformer", {}, (), {}, lambda config: [ParameterRule("{*path}", "{*path}")]
)
