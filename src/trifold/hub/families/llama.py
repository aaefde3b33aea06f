"""LLaMA 1, 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMS norms, rotary positions, a gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trifold.hub.decoders import (
    ATTENTION,
    CLASSIFIERS,
    DECODER,
    FEED_FORWARD,
    B,
    around,
    below,
    buffers,
    classes,
    common_to_ours,
    common_to_theirs,
    decoder_says,
    linear,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
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

CLASSES = classes("Llama", *CLASSIFIERS, "ForQuestionAnswering")
FIXED = {"norm": "rms", "gated": True, "dropout": 0.0}
KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_positions",
    "rms_norm_eps": "norm_epsilon",
    "attention_dropout": "attention_dropout",
}
BIASES = {"attention_bias": "attention_bias", "mlp_bias": "feed_forward_bias"}
SAID = ROPE_SAID | {*KEYS.values(), "activation", "d_head", "n_kv_heads"}
HARMLESS = frozenset({"max_sequence_length"})


class LlamaFile(RopeFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(32000, gt=0)
    hidden_size: int = Field(4096, gt=0)
    intermediate_size: int = Field(11008, gt=0)
    num_hidden_layers: int = Field(32, gt=0)
    num_attention_heads: int = Field(32, gt=0)
    num_key_value_heads: int | None = Field(None, gt=0)
    head_dim: int | None = Field(None, gt=0)
    hidden_act: str = "silu"
    max_position_embeddings: int = Field(2048, gt=0)
    rms_norm_eps: float = Field(1e-6, gt=0)
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    mlp_bias: bool = False


def fits(config: ModelConfig, table: Architectures, said: frozenset[str], **fixed: object) -> bool:
    """Whether a family of this kind has all of these parts and no other."""
    return rope_fits(config) and decoder_says(config, table, SAID | said, **FIXED, **fixed)


def write(config: ModelConfig) -> dict[str, object]:
    """Our config as the keys that such families share."""
    return {
        **common_to_theirs(config),
        **to_theirs(KEYS, config),
        **rope_to_theirs(config),
        "hidden_act": key_of(ACTIVATIONS, config.activation),
        "head_dim": config.head_width,
        "num_key_value_heads": config.kv_heads,
    }


def read(file: LlamaFile, values: Mapping[str, Any], table: Architectures) -> dict[str, Any]:
    """Those keys as ours."""
    even = file.hidden_size // file.num_attention_heads
    width = file.head_dim or even
    return {
        **DECODER,
        **FIXED,
        **common_to_ours(file, file.vocab_size, values, heads_of(values, table)),
        **to_ours(KEYS, file),
        **rope_to_ours(file, file.max_position_embeddings, width),
        "activation": activation("hidden_act", file.hidden_act),
        "d_head": None if width * file.num_attention_heads == file.hidden_size else width,
        "n_kv_heads": unless(file.num_key_value_heads, file.num_attention_heads),
    }


def rules(config: ModelConfig, prefix: str = "model") -> list[AnyRule]:
    """The names of their tensors; those below the heads begin with the prefix."""
    base = below(config, prefix)
    layer = f"{base}layers.{{i}}"
    return [
        *around(config, prefix, embedding="embed_tokens.weight", token_head="score"),
        Rule(f"{B}.self_attention.enter.weight", f"{layer}.input_layernorm.weight"),
        *linear(f"{ATTENTION}.{{p:q|k|v|o}}_proj", f"{layer}.self_attn.{{p}}_proj"),
        Rule(f"{B}.feed_forward.enter.weight", f"{layer}.post_attention_layernorm.weight"),
        *linear(f"{FEED_FORWARD}.gate_proj", f"{layer}.mlp.gate_proj"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.up_proj"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.down_proj"),
        Rule("decoder.final_norm.weight", f"{base}norm.weight"),
        *buffers(f"{layer}.self_attn.rotary_emb", "inv_freq"),
    ]


def _fits(config: ModelConfig) -> bool:
    whole = config.d_model % config.n_heads == 0  # they ask for it even where head_dim is another
    return whole and fits(config, CLASSES, frozenset(BIASES.values()))


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(LlamaFile, values, HARMLESS)
    return ModelConfig.parse(read(file, values, CLASSES) | to_ours(BIASES, file))


FAMILY = Family(
    model_type="llama",
    architecture=architecture_of(CLASSES),
    fits=_fits,
    write=lambda config: write(config) | to_theirs(BIASES, config),
    read=_read,
    rules=lambda config: rules(config, "transformer" if "span" in config.chosen_heads else "model"),
)
