"""Mistral (Jiang et al. 2023): LLaMA with fewer heads of keys and values, and an optional window."""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families import llama
from trifold.hub.family import Row, fixed, revise

FAMILY = replace(
    llama.FAMILY,
    model_type="mistral",
    stem="Mistral",
    entries=revise(
        llama.ENTRIES,
        Row("num_key_value_heads", "n_kv_heads", 8, nullable=True),
        Row("sliding_window", "sliding_window", 4096, nullable=True),
        fixed(attention_bias=False, mlp_bias=False),
        intermediate_size=14336,
        max_position_embeddings=131072,
    ),
    constants=llama.CONSTANTS | {"feed_forward_bias": False},
    rules=llama.RULES,
)
