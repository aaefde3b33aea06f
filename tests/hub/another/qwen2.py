"""Qwen 2 (Yang et al. 2024): LLaMA with biases on queries, keys and values.

A family that trifold does not have, as a contributor would add it: one file in src/trifold/hub/families and a line
in its table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from trifold.hub.families import llama
from trifold.hub.rows import Entry, fixed, ids, revise

LAYER_TYPES = Entry({"layer_types": (list[Literal["full_attention"]] | None, None)})

FAMILY = replace(
    llama.LLAMA,
    model_type="qwen2",
    stem="Qwen2",
    entries=revise(
        llama.ENTRIES,
        ids(),
        fixed(use_sliding_window=False, attention_bias=True, mlp_bias=False),
        LAYER_TYPES,
        vocab_size=151936,
        num_key_value_heads=32,
        intermediate_size=22016,
        max_position_embeddings=32768,
    ),
    constants=llama.CONSTANTS
    | {"attention_bias": True, "attention_out_bias": False, "feed_forward_bias": False},
    rules=llama.RULES,
    ignored="sliding_window max_window_layers",  # no layer has a window
)
