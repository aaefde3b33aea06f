"""Decoders that are related to LLaMA.

Qwen 2 (Yang et al. 2024) has biases on queries, keys and values; the last layers may have a window.
Qwen 2.5 has the same parts. Qwen 3 (Yang et al. 2025) has norms of each head of queries and keys
instead of the biases.

In OLMo 2 (OLMo team 2024) norms follow the sub-layers, and apply to all queries and keys of a
token. In OLMo 3 (OLMo team 2025) three of four layers have a window; scaled frequencies apply in
the other layers.

GLM-4 of 2025 (GLM team) has norms before and after the sub-layers. The first half of each head is
rotated, in pairs of neighbours; queries, keys and values have biases; one matrix holds both factors
of the feed-forward.

Cohere 2 (Command R7B and Command A; Cohere 2025) has parallel attention and feed-forward on one
norm without bias. Three of four layers have a window and rotary positions, in pairs of neighbours;
the others have neither.

nanochat (Karpathy 2025) has RMS norms without weights, relu², and a soft cap on logits. Norms also
follow the embeddings, and apply to each head of queries and keys: after the rotation, which does
not change their length. Heads are rotated in the other direction than LLaMA's. (x₂, x₁) rotated by
an angle is (x₁, x₂) rotated by its negative, swapped: so the halves of each head are swapped in the
matrices of queries and keys.
"""

from typing import Annotated

from pydantic import Field

from trifold.hub.families.gpt import classes
from trifold.hub.families.llama import QK_NORMS, RULES, UNBIASED, by_head, gate_and_in
from trifold.hub.family import BLOCK
from trifold.hub.rope import layered_rope, optional_windows, rope, windows
from trifold.hub.rows import Entry, Fields, fixed, ids, resized, row, rows
from trifold.hub.rules import AnyRule, ParameterRule
from trifold.hub.transforms import permuted
from trifold.nn import ModelConfig

# --- Qwen -----------------------------------------------------------------------------------------

QWEN = UNBIASED.related(
    "",
    Entry({"max_window_layers": (Annotated[int, Field(ge=0)], 28)}),  # the first one with a window
    optional_windows(4096, lambda file, fields, layer: layer >= file.max_window_layers),
    ids(),
    **resized(vocab=151936, kv_heads=32, inner=22016, positions=32768),
)
QWEN2 = QWEN.related(
    "qwen2",
    constants={"attention_bias": True, "attention_out_bias": False},
    rules=by_head(RULES),
    without="attention_bias",
)
QWEN3 = QWEN.related(
    "qwen3",
    row("head_dim", "d_head", 128),
    constants={"qk_norm": "head"},
    rules=by_head(RULES.related(QK_NORMS)),
)

# --- OLMo -----------------------------------------------------------------------------------------

OLMO_NORMS = QK_NORMS | {
    "self_attention.exit": "post_attention_layernorm",
    "feed_forward.exit": "post_feedforward_layernorm",
}

OLMO2 = UNBIASED.related(
    "olmo2",
    ids(pad=1, eos=50279),
    classes=classes("ForTokenClassification", "ForQuestionAnswering"),
    constants={"norm_placement": "exit", "qk_norm": "width"},
    rules=RULES.related(OLMO_NORMS, without="enter"),
    **resized(vocab=50304, rms_norm_eps=1e-5),
)

OLMO3 = OLMO2.related(
    "olmo3",
    layered_rope(500_000.0, 500_000.0, local_theta=""),
    windows(4096, every=4),
    without="partial_rotary_factor original_max_position_embeddings",
)

# --- GLM ------------------------------------------------------------------------------------------

GLM_NORMS = {
    "self_attention.exit": "post_self_attn_layernorm",
    "feed_forward.exit": "post_mlp_layernorm",
}
GLM4 = UNBIASED.related(
    "glm4",
    row("head_dim", "d_head", 128),
    rope(part="partial_rotary_factor", share=0.5),
    ids(pad=151329, eos=151329),
    classes=classes("ForQuestionAnswering"),
    constants={
        "norm_placement": "sandwich",
        "rotary_pairs": "interleaved",
        "attention_out_bias": False,
    },
    rules=RULES.related(GLM_NORMS, without="gate_proj in_proj", more=gate_and_in("gate_up_proj")),
    **resized(vocab=151552, inner=13696, layers=40, kv_heads=2, positions=131072),
    **resized(rms_norm_eps=0.00000015625, attention_bias=True),
)

# --- Cohere ---------------------------------------------------------------------------------------


def _rotary_pattern(fields: Fields) -> tuple[str, ...]:
    kinds: tuple[str, ...] = fields.get("window_pattern", ("global",))
    return tuple("rotary" if kind == "local" else "none" for kind in kinds)


COHERE2 = UNBIASED.related(
    "cohere2",
    *rows(norm_epsilon=("layer_norm_eps", 1e-5), logits_scale=("logit_scale", 0.0625)),
    windows(4096, every=4),
    ids(pad=0, bos=5, eos=255001),
    fixed(order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj"),
    fixed(rotary_pct=1.0, use_embedding_sharing=True, use_gated_activation=True),
    fixed(use_parallel_block=True, use_qk_norm=False),
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    constants={"norm": "layer", "norm_bias": False, "residual": "parallel"}
    | {"rotary_pairs": "interleaved", "rotary_pattern": _rotary_pattern},
    rules=RULES.related(without="feed_forward.enter"),
    # Names of sliding_window_pattern, and of a way to compute.
    ignored="layer_switch use_parallel_embedding",
    without="rms_norm_eps",
    tie_word_embeddings=True,
    **resized(vocab=256000, width=8192, inner=22528, layers=40, heads=64, positions=8192),
)

# --- nanochat -------------------------------------------------------------------------------------

NANOCHAT_LAYER = {
    "self_attention.sublayer.{p:v|o}_proj": "self_attn.{p}_proj",
    "feed_forward.sublayer.in_proj": "mlp.fc1",
    "feed_forward.sublayer.out_proj": "mlp.fc2",
}


def _swapped(config: ModelConfig, base: str) -> list[AnyRule]:
    width = config.head_width
    half = config.head_width // 2
    head = [*range(half, width), *range(half)]
    rules: list[AnyRule] = []
    for name, heads in (("q", config.n_heads), ("k", config.kv_heads)):
        order = [first + row for first in range(0, heads * width, width) for row in head]
        ours = f"{BLOCK}self_attention.sublayer.{name}_proj"
        theirs = f"layers.{{i}}.self_attn.{name}_proj"
        rules.append(ParameterRule(f"{ours}.{{part}}", f"{base}{theirs}.{{part}}", permuted(order)))
    return rules


NANOCHAT = UNBIASED.related(
    "nanochat",
    row("final_logit_softcapping", "logit_soft_cap", 15.0, nullable=True),
    fixed(logits_soft_cap=15.0),  # an older name, which `transformers` does not read
    # The other kinds have a magnitude, and norms follow the rotation.
    rope(kinds=["linear", "dynamic", "llama3"]),
    ids(pad=1, bos=0, eos=1),
    stem="NanoChat",
    classes=classes("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    constants={"norm_weight": "none", "gated": False, "embedding_norm": True, "qk_norm": "head"},
    rules=RULES.related(NANOCHAT_LAYER, without="q|k|v|o enter final_norm", more=_swapped),
    **resized(vocab=50304, width=768, inner=8192, layers=12, heads=6, hidden_act="relu2"),
)
