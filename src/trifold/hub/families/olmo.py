"""OLMo 2 (OLMo team 2024): LLaMA whose norms follow the sub-layers, with norms of all queries and keys of a token.

In OLMo 3 (OLMo team 2025) three of four layers have a window; scaled frequencies apply in the other layers.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families.gpt import classes
from trifold.hub.families.llama import CONSTANTS, ENTRIES, LLAMA, QK_NORMS, RULES
from trifold.hub.family import in_layer
from trifold.hub.rope import layered_rope, windows
from trifold.hub.rows import ids, revise

LAYER = QK_NORMS | {
    "self_attention.exit": "post_attention_layernorm",
    "feed_forward.exit": "post_feedforward_layernorm",
}
NAMES = {ours: theirs for ours, theirs in RULES.names.items() if not ours.endswith(".enter")}

OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    stem="Olmo2",
    classes=classes("ForTokenClassification", "ForQuestionAnswering"),
    entries=revise(
        ENTRIES,
        ids(pad=1, eos=50279),
        without="mlp_bias",
        vocab_size=50304,
        rms_norm_eps=1e-5,
    ),
    constants=CONSTANTS | {"norm_placement": "exit", "qk_norm": "width", "feed_forward_bias": False},
    rules=replace(RULES, names=NAMES | in_layer(".layers.{i}.", LAYER)),
    ignored="",
)

BASE = 500_000.0
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    stem="Olmo3",
    entries=revise(
        OLMO2.entries,
        layered_rope(BASE, BASE, local_theta=""),
        windows(4096, every=4),
        without="partial_rotary_factor original_max_position_embeddings",
    ),
)
