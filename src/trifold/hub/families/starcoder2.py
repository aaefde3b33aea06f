"""StarCoder 2 (Lozhkov et al. 2024): rotary positions, grouped heads and windows, with GPT-2's norms and activation."""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.decoders import COMMON, DECODER, classes
from trifold.hub.families import llama
from trifold.hub.family import ACTIVATIONS, Family, Row, fixed, ids, same
from trifold.hub.rope import rope

NAMES = llama.RULES.names | {
    "feed_forward.sublayer.in_proj": "mlp.c_fc",
    "feed_forward.sublayer.out_proj": "mlp.c_proj",
}
FAMILY = Family(
    model_type="starcoder2",
    stem="Starcoder2",
    classes=classes("ForQuestionAnswering"),
    entries=(
        Row("vocab_size", "vocab_size", 49152),
        Row("hidden_size", "d_model", 3072),
        Row("intermediate_size", "d_ff", 12288),
        Row("num_hidden_layers", "n_layers", 30),
        Row("num_attention_heads", "n_heads", 24),
        Row("num_key_value_heads", "n_kv_heads", 2, nullable=True),
        Row("hidden_act", "activation", "gelu_pytorch_tanh", map=ACTIVATIONS),
        Row("max_position_embeddings", "max_positions", 4096),
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
