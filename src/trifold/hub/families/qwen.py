"""Qwen 2 (Yang et al. 2024): LLaMA with biases on queries, keys and values; the last layers may have a window.

Qwen 2.5 has the same parts. Qwen 3 (Yang et al. 2025) has norms of each head of queries and keys instead of the biases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from trifold.hub.families.llama import CONSTANTS, ENTRIES, LLAMA, QK_NORMS, RULES, by_head
from trifold.hub.family import in_layer
from trifold.hub.rope import windows
from trifold.hub.rows import Entry, fixed, ids, resized, revise, row

# The first layer with a window.
FIRST = Entry({"max_window_layers": (Annotated[int, Field(ge=0)], 28)})

QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    stem="Qwen2",
    entries=revise(
        ENTRIES,
        FIRST,
        windows(4096, local=lambda file, fields, layer: layer >= file.max_window_layers),
        ids(),
        fixed(use_mrope=False),
        without="attention_bias mlp_bias",
        **resized(vocab=151936, kv_heads=32, inner=22016, positions=32768),
    ),
    constants=CONSTANTS | {"attention_bias": True, "attention_out_bias": False, "feed_forward_bias": False},
    ignored="",
)

QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    stem="Qwen3",
    entries=revise(
        QWEN2.entries,
        row("head_dim", "d_head", 128),
        row("attention_bias", "attention_bias", False),
        without="use_mrope",
    ),
    constants=CONSTANTS | {"qk_norm": "head", "feed_forward_bias": False},
    rules=by_head(replace(RULES, names=RULES.names | in_layer(".layers.{i}.", QK_NORMS))),
)
