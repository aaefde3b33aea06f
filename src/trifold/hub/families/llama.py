"""LLaMA 1, 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMS norms, rotary positions, a gated feed-forward.

Mistral (Jiang et al. 2023) is LLaMA with fewer heads of keys and values, and an optional window. StarCoder 2 (Lozhkov
et al. 2024) has both too, with GPT-2's norms and activation.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.errors import SettingsError
from trifold.hub.families.gpt import COMMON, DECODER, HEADS, classes
from trifold.hub.family import Family, TensorRules, in_layer
from trifold.hub.rope import rope
from trifold.hub.rows import Entry, Fields, fixed, ids, revise, row, rows, same, sizes
from trifold.nn import ModelConfig

ENTRIES = (
    *sizes(vocab=32000, width=4096, inner=11008, layers=32, heads=32, positions=2048, activation="silu"),
    row("num_key_value_heads", "n_kv_heads", None),
    row("head_dim", "d_head", None, otherwise=lambda f: f["d_model"] // f["n_heads"]),
    row("rms_norm_eps", "norm_epsilon", 1e-6),
    *rows(attention_dropout=0.0, attention_bias=False),
    row("mlp_bias", "feed_forward_bias", False),
    rope(),
    ids(bos=1, eos=2),
    *revise(COMMON, tie_word_embeddings=False),
)
CONSTANTS = DECODER | {"norm": "rms", "gated": True, "dropout": 0.0}
LAYER = {
    "self_attention.enter": "input_layernorm",
    "self_attention.sublayer.{p:q|k|v|o}_proj": "self_attn.{p}_proj",
    "feed_forward.enter": "post_attention_layernorm",
    "feed_forward.sublayer.gate_proj": "mlp.gate_proj",
    "feed_forward.sublayer.in_proj": "mlp.up_proj",
    "feed_forward.sublayer.out_proj": "mlp.down_proj",
}
AROUND = {"decoder.final_norm": ".norm", **HEADS, "heads.token.out_proj": "score"}
RULES = TensorRules(
    "model",
    ".embed_tokens",
    AROUND | in_layer(".layers.{i}.", LAYER),
    lm_head="lm_head",
    buffers=".layers.{i}.self_attn.rotary_emb.inv_freq",
)


def _check_width(config: ModelConfig) -> Fields:
    if config.d_model % config.n_heads:  # `transformers` requires it even where head_dim differs
        raise SettingsError(f"hidden_size: {config.d_model} is not a multiple of {config.n_heads} heads")
    return {}


LLAMA = Family(
    model_type="llama",
    stem="Llama",
    classes=classes(),
    entries=(*ENTRIES, Entry({}, save=_check_width)),
    constants=CONSTANTS,
    rules=lambda c: (replace(RULES, prefix="transformer") if "span" in c.chosen_heads else RULES)(c),
    ignored="max_sequence_length",
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    stem="Mistral",
    entries=revise(
        ENTRIES,
        row("sliding_window", "sliding_window", 4096, nullable=True),
        fixed(attention_bias=False, mlp_bias=False),
        num_key_value_heads=8,
        intermediate_size=14336,
        max_position_embeddings=131072,
    ),
    constants=CONSTANTS | {"feed_forward_bias": False},
    rules=RULES,
)

SIZES = sizes(
    vocab=49152, width=3072, inner=12288, layers=30, heads=24, positions=4096, activation="gelu_pytorch_tanh"
)
CODER_LAYER = {"feed_forward.sublayer.in_proj": "mlp.c_fc", "feed_forward.sublayer.out_proj": "mlp.c_proj"}
STARCODER2 = Family(
    model_type="starcoder2",
    stem="Starcoder2",
    classes=classes("ForQuestionAnswering"),
    entries=(
        *SIZES,
        *rows(norm_epsilon=1e-5, sliding_window=None, attention_dropout=0.0, embedding_dropout=0.0),
        row("num_key_value_heads", "n_kv_heads", 2, nullable=True),
        row("residual_dropout", "dropout", 0.0),
        row("use_bias", "attention_bias", True),
        fixed(mlp_type="default", norm_type="layer_norm"),
        rope(),
        ids(bos=50256, eos=50256),
        *COMMON,
    ),
    constants=DECODER | {"feed_forward_bias": same("attention_bias")},
    rules=replace(RULES, names=RULES.names | in_layer(".layers.{i}.", CODER_LAYER)),
    # Left over from the training program; `transformers` does not read them.
    ignored="""
    activation_function attention_softmax_in_fp32 layer_norm_epsilon scale_attention_softmax_in_fp32
    scale_attn_weights
    """,
)
