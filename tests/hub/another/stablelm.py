"""StableLM (Bellagente et al. 2024): LLaMA with layer norms; the first quarter of each head is rotated.

A family that trifold does not have, as a contributor would add it: one file in src/trifold/hub/families and a line
in its table.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families import llama
from trifold.hub.families.gpt import classes
from trifold.hub.rope import rope
from trifold.hub.rows import fixed, ids, revise, row

FAMILY = replace(
    llama.LLAMA,
    model_type="stablelm",
    stem="StableLm",
    classes=classes("ForQuestionAnswering"),
    entries=revise(
        llama.ENTRIES,
        row("layer_norm_eps", "norm_epsilon", 1e-5),
        row("use_qkv_bias", "attention_bias", False),
        rope(part="partial_rotary_factor", share=0.25),
        ids(bos=0, eos=0),
        fixed(hidden_dropout=0.0, qk_layernorm=False, use_parallel_residual=False),
        without="head_dim rms_norm_eps attention_bias mlp_bias",
        vocab_size=50304,
        hidden_size=2560,
        intermediate_size=6912,
        num_key_value_heads=32,
        max_position_embeddings=4096,
    ),
    constants=llama.CONSTANTS | {"norm": "layer", "attention_out_bias": False, "feed_forward_bias": False},
    rules=llama.RULES,
)
