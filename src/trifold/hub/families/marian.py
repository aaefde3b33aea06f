"""The Transformer of 2017 as the reference library knows it: Marian.

Marian writes all sines of the positions before all cosines where the paper interleaves them. The width of the model
has no order of its own, so one permutation of it, applied to every tensor that has that axis, turns the one into the
other and leaves the logits as they were. Marian always has biases in attention and on the logits; where we have none
they are zeros. Keys of ours in config.json, which the reference ignores, say how to come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    Ends,
    Family,
    activation,
    first_end,
    heads_of,
    key_of,
    parse_config,
    says,
    unless,
)
from trifold.hub.rules import LEADING_AXIS, SAME, AnyRule, Copy, Ignored, Rule, Transform, Zeros, permuted
from trifold.nn import ModelConfig
from trifold.settings import Settings

CLASSES: Architectures = {"MarianMTModel": ("lm",)}
LAYOUTS = {"interleaved": "sinusoidal", "halves": "sinusoidal-halves"}
NORM_EPSILON = 1e-5  # not a key of theirs

# --- config.json ---------------------------------------------------------------------------------------


class MarianFile(Settings):
    """Their keys, types and defaults; a field that allows one value is a part which we do not have."""

    vocab_size: int = Field(58101, gt=0)
    decoder_vocab_size: int | None = Field(None, gt=0)
    share_encoder_decoder_embeddings: bool = True
    max_position_embeddings: int = Field(1024, gt=0)
    d_model: int = Field(1024, gt=0)
    encoder_layers: int = Field(12, gt=0)
    decoder_layers: int = Field(12, gt=0)
    num_hidden_layers: int | None = None
    encoder_attention_heads: int = Field(16, gt=0)
    decoder_attention_heads: int = Field(16, gt=0)
    encoder_ffn_dim: int = Field(4096, gt=0)
    decoder_ffn_dim: int = Field(4096, gt=0)
    activation_function: str = "gelu"
    scale_embedding: bool = False
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    init_std: float = 0.02
    pad_token_id: int = Field(58100, ge=0)
    eos_token_id: Ends = 0
    bos_token_id: int | None = Field(None, ge=0)
    decoder_start_token_id: int = Field(58100, ge=0)

    # What only other models have.
    is_encoder_decoder: Literal[True] = True
    is_decoder: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    activation_dropout: float = Field(0.0, ge=0, le=0)
    encoder_layerdrop: float = Field(0.0, ge=0, le=0)
    decoder_layerdrop: float = Field(0.0, ge=0, le=0)
    classifier_dropout: float = 0.0
    classif_dropout: float = 0.0
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    add_bias_logits: Literal[False] = False
    static_position_embeddings: Literal[True] = True

    # Ours: files of others have none of these.
    position_layout: Literal["interleaved", "halves"] = "halves"
    attention_bias: bool = True
    lm_head_bias: bool = True


def fits(config: ModelConfig) -> bool:
    """Whether Marian has all of these parts, and no other."""
    return (
        config.shape == "encoder-decoder"
        and config.positions in LAYOUTS.values()
        and (config.norm, config.norm_placement, config.norm_epsilon) == ("layer", "post", NORM_EPSILON)
        and config.activation in ACTIVATIONS.values()
        and config.kv_heads == config.n_heads
        and all(side.head_width * side.n_heads == side.d_model for side in (config, config.decoder_side))
        and config.feed_forward_bias
        and config.tie_lm_head
        and config.chosen_heads == ("lm",)
        and says(config, SAID)
    )


# What the keys of their file say, or `fits` has looked at; every other key of ours must be at its default.
SAID = frozenset(
    """
    shape vocab_size target_vocab_size max_positions d_model n_layers n_decoder_layers n_heads n_decoder_heads
    n_kv_heads d_head d_ff d_decoder_ff heads
    positions scale_embeddings norm norm_placement norm_epsilon activation attention_bias tie_lm_head lm_head_bias
    dropout attention_dropout pad_id bos_id eos_id decoder_start_id
    """.split()
)


def _write(config: ModelConfig) -> dict[str, object]:
    return {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.output_vocab_size,
        "share_encoder_decoder_embeddings": config.target_vocab_size is None,
        "max_position_embeddings": config.max_positions,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_decoder_heads or config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_decoder_ff or config.d_ff,
        "activation_function": key_of(ACTIVATIONS, config.activation),
        "scale_embedding": config.scale_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": config.bos_id,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,  # left out, it would be 0: our padding
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "position_layout": key_of(LAYOUTS, config.positions),
        "attention_bias": config.attention_bias,
        "lm_head_bias": config.lm_head_bias,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    heads_of(values, CLASSES)
    file = parse_config(MarianFile, values)
    own_target = None if file.share_encoder_decoder_embeddings else file.decoder_vocab_size or file.vocab_size
    start = file.decoder_start_token_id
    bos = start if file.bos_token_id is None else file.bos_token_id
    return ModelConfig.parse(
        {
            "vocab_size": file.vocab_size,
            "target_vocab_size": own_target,
            "max_positions": file.max_position_embeddings,
            "d_model": file.d_model,
            "n_layers": file.encoder_layers,
            "n_decoder_layers": None if file.decoder_layers == file.encoder_layers else file.decoder_layers,
            "n_heads": file.encoder_attention_heads,
            "d_ff": file.encoder_ffn_dim,
            "n_decoder_heads": unless(file.decoder_attention_heads, file.encoder_attention_heads),
            "d_decoder_ff": unless(file.decoder_ffn_dim, file.encoder_ffn_dim),
            "positions": LAYOUTS[file.position_layout],
            "scale_embeddings": file.scale_embedding,
            "norm_epsilon": NORM_EPSILON,
            "activation": activation("activation_function", file.activation_function),
            "attention_bias": file.attention_bias,
            "lm_head_bias": file.lm_head_bias,
            "dropout": file.dropout,
            "attention_dropout": file.attention_dropout,
            "pad_id": file.pad_token_id,
            "eos_id": first_end(file.eos_token_id),
            "bos_id": bos,
            "decoder_start_id": None if start == bos else start,
        }
    )


# --- weights -------------------------------------------------------------------------------------------

STACK = "{stack:encoder|decoder}.blocks.{i}"
LAYER = "model.{stack}.layers.{i}"
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
NORMS = {
    "self_attention": "self_attn_layer_norm",
    "cross_attention": "encoder_attn_layer_norm",
    "feed_forward": "final_layer_norm",
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    rows, columns = _width(config, axis=0), _width(config, axis=1)
    table: list[AnyRule] = [
        Rule(f"{STACK}.feed_forward.sublayer.in_proj.weight", f"{LAYER}.fc1.weight", columns),
        Rule(f"{STACK}.feed_forward.sublayer.in_proj.bias", f"{LAYER}.fc1.bias"),
        Rule(f"{STACK}.feed_forward.sublayer.out_proj.{{part:weight|bias}}", f"{LAYER}.fc2.{{part}}", rows),
        Ignored("model.{stack:encoder|decoder}.embed_positions.weight"),
    ]
    for ours, theirs in ATTENTIONS.items():
        table += _attention(f"{STACK}.{ours}.sublayer", f"{LAYER}.{theirs}", config, rows, columns)
    for ours, theirs in NORMS.items():
        table.append(Rule(f"{STACK}.{ours}.after.{{part:weight|bias}}", f"{LAYER}.{theirs}.{{part}}", rows))
    return table + _vocabulary(config, columns)


def _width(config: ModelConfig, axis: int) -> Transform:
    if config.positions == "sinusoidal-halves":
        return SAME
    return permuted((*range(0, config.d_model, 2), *range(1, config.d_model, 2)), axis)


def _attention(
    ours: str, theirs: str, config: ModelConfig, rows: Transform, columns: Transform
) -> list[AnyRule]:
    table: list[AnyRule] = [
        Rule(f"{ours}.{{p:q|k|v}}_proj.weight", f"{theirs}.{{p}}_proj.weight", columns),
        Rule(f"{ours}.o_proj.weight", f"{theirs}.out_proj.weight", rows),
    ]
    if config.attention_bias:
        return [
            *table,
            Rule(f"{ours}.{{p:q|k|v}}_proj.bias", f"{theirs}.{{p}}_proj.bias"),
            Rule(f"{ours}.o_proj.bias", f"{theirs}.out_proj.bias", rows),
        ]
    remedy = "write attention_bias: true in config.json"
    return [
        *table,
        Zeros(f"{theirs}.{{p}}_proj.bias", beside=f"{ours}.{{p:q|k|v}}_proj.weight", remedy=remedy),
        Zeros(f"{theirs}.out_proj.bias", beside=f"{ours}.o_proj.weight", remedy=remedy),
    ]


def _vocabulary(config: ModelConfig, columns: Transform) -> list[AnyRule]:
    if config.target_vocab_size is None:
        target = "encoder_embeddings.tokens.weight"
        table: list[AnyRule] = [
            Rule(target, "model.shared.weight", columns),
            Copy("model.{stack:encoder|decoder}.embed_tokens.weight", of="model.shared.weight"),
            Copy("lm_head.weight", of="model.shared.weight"),
        ]
    else:
        target = "decoder_embeddings.tokens.weight"
        table = [
            Rule("{stack}_embeddings.tokens.weight", "model.{stack}.embed_tokens.weight", columns),
            Copy("lm_head.weight", of="model.decoder.embed_tokens.weight"),
        ]
    if config.lm_head_bias:
        return [*table, Rule("lm_head.bias", "final_logits_bias", LEADING_AXIS)]
    remedy = "write lm_head_bias: true in config.json"
    return [*table, Zeros("final_logits_bias", target, lambda weight: (1, weight.shape[0]), remedy)]


FAMILY = Family("marian", lambda config: "MarianMTModel", fits, _write, _read, _rules)
