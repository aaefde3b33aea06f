"""Qwen 2 (Yang et al. 2024): LLaMA whose queries, keys and values have biases.

A family that trifold does not have, as somebody would add it: this file in src/trifold/hub/families, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.decoders import CLASSIFIERS, classes
from trifold.hub.families import llama
from trifold.hub.family import Family, architecture_of, parse_config
from trifold.nn import ModelConfig

CLASSES = classes("Qwen2", *CLASSIFIERS, "ForQuestionAnswering")
FIXED = {"attention_bias": True, "attention_out_bias": False, "feed_forward_bias": False}
# They say which layers see a window only, and none does.
HARMLESS = frozenset({"sliding_window", "max_window_layers"})


class Qwen2File(llama.LlamaFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(151936, gt=0)
    intermediate_size: int = Field(22016, gt=0)
    num_key_value_heads: int | None = Field(32, gt=0)
    max_position_embeddings: int = Field(32768, gt=0)
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
    attention_bias: Literal[True] = True
    mlp_bias: Literal[False] = False


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(Qwen2File, values, HARMLESS)
    return ModelConfig.parse(llama.read(file, values, CLASSES) | FIXED)


FAMILY = Family(
    model_type="qwen2",
    architecture=architecture_of(CLASSES),
    fits=lambda config: llama.fits(config, CLASSES, frozenset(), **FIXED),
    write=llama.write,
    read=_read,
    rules=llama.rules,
)
