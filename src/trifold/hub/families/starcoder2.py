"""StarCoder 2 (Lozhkov et al. 2024): rotary positions, grouped heads and windows, with GPT-2's norms and activation."""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.decoders import COMMON, DECODER, classes
from trifold.hub.families import llama
from trifold.hub.family import Family
from trifold.hub.rope import rope
from trifold.hub.rows import Row, fixed, ids, same, sizes

NAMES = llama.RULES.names | {
    "feed_forward.sublayer.in_proj": "mlp.c_fc",
    "feed_forward.sublayer.out_proj": "mlp.c_proj",
}
SIZES = sizes(
    vocab=49152, width=3072, inner=12288, layers=30, heads=24, positions=4096, activation="gelu_pytorch_tanh"
)
FAMILY = Family(
    model_type="starcoder2",
    stem="Starcoder2",
    classes=classes("ForQuestionAnswering"),
    entries=(
        *SIZES,
        Row("num_key_value_heads", "n_kv_heads", 2, nullable=True),
        Row("norm_epsilon", "norm_epsilon", 1e-5),
        Row("sliding_window", "sliding_window", None),
        Row("attention_dropout", "attention_dropout", 0.0),
        Row("residual_dropout", "dropout", 0.0),
        Row("embedding_dropout", "embedding_dropout", 0.0),
        Row("use_bias", "attention_bias", True),
        fixed(mlp_type="default", norm_type="layer_norm"),
        rope(),
        ids(bos=50256, eos=50256),
        *COMMON,
    ),
    constants=DECODER | {"feed_forward_bias": same("attention_bias")},
    rules=replace(llama.RULES, names=NAMES),
    # Left over from the training program; the reference does not read them.
    ignored="""
    activation_function attention_softmax_in_fp32 layer_norm_epsilon scale_attention_softmax_in_fp32
    scale_attn_weights
    """,
)
