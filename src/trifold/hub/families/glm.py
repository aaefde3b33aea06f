"""GLM-4 of 2025 (GLM team): LLaMA with norms before and after the sub-layers.

The first half of each head is rotated, in pairs of neighbours; queries, keys and values have biases; one matrix holds
both factors of the feed-forward.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families.gpt import classes
from trifold.hub.families.llama import CONSTANTS, ENTRIES, FUSED, LLAMA, RULES, gate_and_in
from trifold.hub.family import in_layer
from trifold.hub.rope import rope
from trifold.hub.rows import ids, resized, revise, row

LAYER = {"self_attention.exit": "post_self_attn_layernorm", "feed_forward.exit": "post_mlp_layernorm"}
GLM4 = replace(
    LLAMA,
    model_type="glm4",
    stem="Glm4",
    classes=classes("ForQuestionAnswering"),
    entries=revise(
        ENTRIES,
        row("head_dim", "d_head", 128),
        rope(part="partial_rotary_factor", share=0.5),
        ids(pad=151329, eos=151329),
        without="mlp_bias",
        **resized(vocab=151552, inner=13696, layers=40, kv_heads=2, positions=131072),
        rms_norm_eps=0.00000015625,
        attention_bias=True,
    ),
    constants=CONSTANTS
    | {"norm_placement": "sandwich", "rotary_pairs": "interleaved"}
    | {"attention_out_bias": False, "feed_forward_bias": False},
    rules=replace(RULES, names=FUSED | in_layer(".layers.{i}.", LAYER), more=gate_and_in("gate_up_proj")),
    ignored="",
)
