"""Cohere 2 (Command R7B and Command A; Cohere 2025): parallel attention and feed-forward on one norm without bias.

Three of four layers have a window and rotary positions, in pairs of neighbours; the others have neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.hub.families.gpt import classes
from trifold.hub.families.llama import CONSTANTS, ENTRIES, LLAMA, RULES
from trifold.hub.rope import repeated, windows
from trifold.hub.rows import Entry, Fields, fixed, ids, resized, revise, row

WINDOWS = windows(4096, every=4)


def _load_layers(file: Any, fields: Fields) -> Fields:
    found = WINDOWS.load(file, fields)
    if not found:
        return {"rotary_pattern": ("none",)}
    local: tuple[str, ...] = found["window_pattern"]
    return found | {"rotary_pattern": repeated(["rotary" if each == "local" else "none" for each in local])}


COHERE2 = replace(
    LLAMA,
    model_type="cohere2",
    stem="Cohere2",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    entries=revise(
        ENTRIES,
        row("layer_norm_eps", "norm_epsilon", 1e-5),
        row("logit_scale", "logits_scale", 0.0625),
        Entry(WINDOWS.keys, _load_layers, WINDOWS.save),
        ids(pad=0, bos=5, eos=255001),
        fixed(
            order_of_interleaved_layers="local_attn_first",
            position_embedding_type="rope_gptj",
            rotary_pct=1.0,
        ),
        fixed(use_embedding_sharing=True, use_gated_activation=True),
        fixed(use_parallel_block=True, use_qk_norm=False),
        without="rms_norm_eps mlp_bias",
        **resized(vocab=256000, width=8192, inner=22528, layers=40, heads=64, positions=8192),
        tie_word_embeddings=True,
    ),
    constants=CONSTANTS
    | {"norm": "layer", "norm_bias": False, "residual": "parallel", "rotary_pairs": "interleaved"}
    | {"feed_forward_bias": False},
    rules=replace(
        RULES, names={ours: t for ours, t in RULES.names.items() if "feed_forward.enter" not in ours}
    ),
    ignored="layer_switch use_parallel_embedding",  # names of sliding_window_pattern, and of a way to compute
)
