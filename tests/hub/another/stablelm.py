"""StableLM (Bellagente et al. 2024): LLaMA with layer norms; the first quarter of each head is
rotated.

A family that trifold does not have, as a contributor would add it: one file in
src/trifold/hub/families and a line in its table."""

from __future__ import annotations

from trifold.hub.families import llama
from trifold.hub.families.gpt import classes
from trifold.hub.rope import rope
from trifold.hub.rows import fixed, ids, resized, row

FAMILY = llama.UNBIASED.related(
    "stablelm",
    row("layer_norm_eps", "norm_epsilon", 1e-5),
    row("use_qkv_bias", "attention_bias", False),
    rope(part="partial_rotary_factor", share=0.25),
    ids(bos=0, eos=0),
    fixed(hidden_dropout=0.0, qk_layernorm=False, use_parallel_residual=False),
    stem="StableLm",
    classes=classes("ForQuestionAnswering"),
    constants={"norm": "layer", "attention_out_bias": False},
    without="head_dim rms_norm_eps attention_bias",
    **resized(vocab=50304, width=2560, inner=6912, kv_heads=32, positions=4096),
)
