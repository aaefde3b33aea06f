"""Mistral (Jiang et al. 2023): LLaMA with fewer heads of keys and values, which may see a window only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.decoders import CLASSIFIERS, classes
from trifold.hub.families import llama
from trifold.hub.family import Family, architecture_of, parse_config, to_ours, to_theirs
from trifold.nn import ModelConfig

CLASSES = classes("Mistral", *CLASSIFIERS, "ForQuestionAnswering")
KEYS = {"sliding_window": "sliding_window"}


class MistralFile(llama.LlamaFile):
    """Their keys, types and defaults."""

    intermediate_size: int = Field(14336, gt=0)
    num_key_value_heads: int | None = Field(8, gt=0)
    max_position_embeddings: int = Field(131072, gt=0)
    sliding_window: int | None = Field(4096, gt=0)
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(MistralFile, values, llama.HARMLESS)
    return ModelConfig.parse(
        llama.read(file, values, CLASSES) | to_ours(KEYS, file) | {"feed_forward_bias": False}
    )


FAMILY = Family(
    model_type="mistral",
    architecture=architecture_of(CLASSES),
    fits=lambda config: llama.fits(config, CLASSES, frozenset(KEYS.values()), feed_forward_bias=False),
    write=lambda config: llama.write(config) | to_theirs(KEYS, config),
    read=_read,
    rules=llama.rules,
)
