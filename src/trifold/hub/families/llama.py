"""LLaMA 1, 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMS norms, rotary positions, a gated feed-forward.

Mistral (Jiang et al. 2023) is LLaMA with fewer heads of keys and values, and an optional window.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.errors import SettingsError
from trifold.hub.decoders import COMMON, DECODER, DecoderRules, classes
from trifold.hub.family import Family
from trifold.hub.rope import rope
from trifold.hub.rows import Fields, Group, Row, fixed, ids, revise, sizes
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig


def _head_width(value: int | None, fields: Fields) -> int:
    return value or int(fields["d_model"]) // int(fields["n_heads"])


ENTRIES = (
    *sizes(vocab=32000, width=4096, inner=11008, layers=32, heads=32, positions=2048, activation="silu"),
    Row("num_key_value_heads", "n_kv_heads", None),
    Row("head_dim", "d_head", None, load=_head_width),
    Row("rms_norm_eps", "norm_epsilon", 1e-6),
    Row("attention_dropout", "attention_dropout", 0.0),
    Row("attention_bias", "attention_bias", False),
    Row("mlp_bias", "feed_forward_bias", False),
    rope(),
    ids(bos=1, eos=2),
    *revise(COMMON, tie_word_embeddings=False),
)
CONSTANTS = DECODER | {"norm": "rms", "gated": True, "dropout": 0.0}
RULES = DecoderRules(
    "model",
    "layers.{i}.",
    {
        "self_attention.enter": "input_layernorm",
        "self_attention.sublayer.{p:q|k|v|o}_proj": "self_attn.{p}_proj",
        "feed_forward.enter": "post_attention_layernorm",
        "feed_forward.sublayer.gate_proj": "mlp.gate_proj",
        "feed_forward.sublayer.in_proj": "mlp.up_proj",
        "feed_forward.sublayer.out_proj": "mlp.down_proj",
    },
    tokens="embed_tokens",
    final_norm="norm",
    token_head="score",
    buffers="self_attn.rotary_emb.inv_freq",
)


def _rules(config: ModelConfig) -> list[AnyRule]:
    return replace(RULES, prefix="transformer" if "span" in config.chosen_heads else "model")(config)


def _check_width(config: ModelConfig) -> Fields:
    if config.d_model % config.n_heads:  # the reference requires it even where head_dim differs
        raise SettingsError(f"hidden_size: {config.d_model} is not a multiple of {config.n_heads} heads")
    return {}


LLAMA = Family(
    model_type="llama",
    stem="Llama",
    classes=classes(),
    entries=(*ENTRIES, Group({}, save=_check_width)),
    constants=CONSTANTS,
    rules=_rules,
    ignored="max_sequence_length",
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    stem="Mistral",
    entries=revise(
        ENTRIES,
        Row("num_key_value_heads", "n_kv_heads", 8, nullable=True),
        Row("sliding_window", "sliding_window", 4096, nullable=True),
        fixed(attention_bias=False, mlp_bias=False),
        intermediate_size=14336,
        max_position_embeddings=131072,
    ),
    constants=CONSTANTS | {"feed_forward_bias": False},
    rules=RULES,
)
