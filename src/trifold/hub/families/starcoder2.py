"""StarCoder 2 (Lozhkov et al. 2024): rotary positions, grouped heads and windows, with GPT-2's norms and activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.decoders import (
    ATTENTION,
    CLASSIFIERS,
    DECODER,
    FEED_FORWARD,
    PART,
    B,
    around,
    below,
    buffers,
    classes,
    common_to_ours,
    common_to_theirs,
    cut_evenly,
    decoder_says,
    linear,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Family,
    activation,
    architecture_of,
    heads_of,
    key_of,
    parse_config,
    to_ours,
    to_theirs,
    unless,
)
from trifold.hub.rope import ROPE_SAID, RopeFile, rope_fits, rope_to_ours, rope_to_theirs
from trifold.hub.rules import AnyRule, Rule
from trifold.nn import ModelConfig

CLASSES = classes("Starcoder2", *CLASSIFIERS)
KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_positions",
    "norm_epsilon": "norm_epsilon",
    "sliding_window": "sliding_window",
    "attention_dropout": "attention_dropout",
    "residual_dropout": "dropout",
    "use_bias": "attention_bias",
}
SAID = ROPE_SAID | {
    *KEYS.values(),
    "activation",
    "d_head",
    "n_kv_heads",
    "embedding_dropout",
    "feed_forward_bias",
}
# Left over from the training program; the reference does not look at them.
HARMLESS = frozenset(
    """
    activation_function attention_softmax_in_fp32 layer_norm_epsilon scale_attention_softmax_in_fp32
    scale_attn_weights
    """.split()
)


class Starcoder2File(RopeFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(49152, gt=0)
    hidden_size: int = Field(3072, gt=0)
    intermediate_size: int = Field(12288, gt=0)
    num_hidden_layers: int = Field(30, gt=0)
    num_attention_heads: int = Field(24, gt=0)
    num_key_value_heads: int | None = Field(2, gt=0)
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = Field(4096, gt=0)
    norm_epsilon: float = Field(1e-5, gt=0)
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    sliding_window: int | None = Field(None, gt=0)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    residual_dropout: float = Field(0.0, ge=0, lt=1)
    embedding_dropout: float = Field(0.0, ge=0, lt=1)
    use_bias: bool = True
    mlp_type: Literal["default"] = "default"
    norm_type: Literal["layer_norm"] = "layer_norm"


def _fits(config: ModelConfig) -> bool:
    alike = config.attention_bias == config.feed_forward_bias
    whole = cut_evenly(config) and alike
    return whole and rope_fits(config) and decoder_says(config, CLASSES, SAID)


def _write(config: ModelConfig) -> dict[str, object]:
    embedding = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    return {
        **common_to_theirs(config),
        **to_theirs(KEYS, config),
        **rope_to_theirs(config),
        "hidden_act": key_of(ACTIVATIONS, config.activation),
        "num_key_value_heads": config.kv_heads,
        "embedding_dropout": embedding,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(Starcoder2File, values, HARMLESS)
    width = file.hidden_size // file.num_attention_heads
    return ModelConfig.parse(
        {
            **DECODER,
            **common_to_ours(file, file.vocab_size, values, heads_of(values, CLASSES)),
            **to_ours(KEYS, file),
            **rope_to_ours(file, file.max_position_embeddings, width),
            "activation": activation("hidden_act", file.hidden_act),
            "n_kv_heads": unless(file.num_key_value_heads, file.num_attention_heads),
            "feed_forward_bias": file.use_bias,
            "embedding_dropout": unless(file.embedding_dropout, file.residual_dropout),
        }
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "model")
    layer = f"{base}layers.{{i}}"
    return [
        *around(config, "model", embedding="embed_tokens.weight", token_head="score"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.input_layernorm.{{part}}"),
        *linear(f"{ATTENTION}.{{p:q|k|v|o}}_proj", f"{layer}.self_attn.{{p}}_proj"),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.post_attention_layernorm.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.c_fc"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.c_proj"),
        Rule(f"decoder.final_norm.{PART}", f"{base}norm.{{part}}"),
        *buffers(f"{layer}.self_attn.rotary_emb", "inv_freq"),
    ]


FAMILY = Family("starcoder2", architecture_of(CLASSES), _fits, _write, _read, _rules)
