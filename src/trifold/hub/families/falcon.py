"""Falcon (Almazrouei et al. 2023): the 7b (one head of keys and values, one norm), the 40b (groups of heads, two norms)
and the first ones with ALiBi, whose offsets were trained in bfloat16 and scaled with the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
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
    qkv,
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
from trifold.hub.rules import AnyRule, Rule, dealt
from trifold.nn import ModelConfig

CLASSES = classes("Falcon", *CLASSIFIERS, "ForQuestionAnswering")
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "layer_norm_epsilon": "norm_epsilon",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "bias": "attention_bias",
    "max_position_embeddings": "max_positions",
}
SAID = (
    ROPE_SAID
    | {*KEYS.values(), "d_ff", "feed_forward_bias", "activation", "embedding_dropout", "residual"}
    | {"d_head", "n_kv_heads", "alibi_scale", "alibi_rounded"}
)
HARMLESS = frozenset({"auto_map"})  # code of theirs that is older than the reference; it is never loaded
# What is normed -> their names of the norms before attention and before the feed-forward.
NORMS = {
    "sequential": ("input_layernorm", "post_attention_layernorm"),
    "parallel": ("input_layernorm", ""),
    "parallel-two-norms": ("ln_attn", "ln_mlp"),
}


class FalconFile(RopeFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(65024, gt=0)
    hidden_size: int = Field(4544, gt=0)
    n_embed: int | None = Field(None, gt=0)
    num_hidden_layers: int = Field(32, gt=0)
    num_attention_heads: int = Field(71, gt=0)
    num_ln_in_parallel_attn: int | None = Field(None, ge=1, le=2)
    layer_norm_epsilon: float = Field(1e-5, gt=0)
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    num_kv_heads: int | None = Field(None, gt=0)
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    max_position_embeddings: int = Field(2048, gt=0)
    ffn_hidden_size: int | None = Field(None, gt=0)
    activation: str = "gelu"
    bos_token_id: int | None = 11
    eos_token_id: int | list[int] | None = 11
    apply_residual_connection_post_layernorm: Literal[False] = False


def _fits(config: ModelConfig) -> bool:
    if not cut_evenly(config) or config.feed_forward_bias != config.attention_bias:
        return False
    if config.residual == "sequential" and config.kv_heads not in (1, config.n_heads):
        return False
    if config.dropout and config.embedding_dropout != 0.0:
        return False
    alibi = config.positions == "alibi" and config.alibi_rounded and config.alibi_scale == _scale(config)
    return (alibi or rope_fits(config)) and decoder_says(config, CLASSES, SAID)


def _scale(config: ModelConfig) -> float:
    return float(config.head_width**-0.5)


def _write(config: ModelConfig) -> dict[str, object]:
    grouped = config.residual == "parallel-two-norms" or config.kv_heads not in (1, config.n_heads)
    norms = {"parallel": 1, "parallel-two-norms": 2}
    alibi = config.positions == "alibi"
    return {
        **common_to_theirs(config),
        **to_theirs(KEYS, config),
        **({} if alibi else rope_to_theirs(config)),
        "alibi": alibi,
        "activation": key_of(ACTIVATIONS, config.activation),
        "ffn_hidden_size": config.d_ff,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": norms.get(config.residual) if grouped else None,
        "parallel_attn": config.residual != "sequential",
        "multi_query": config.kv_heads == 1,
        "num_kv_heads": config.kv_heads,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(FalconFile, values, HARMLESS)
    if file.n_embed is not None:
        file = file.model_copy(update={"hidden_size": file.n_embed})
    heads = heads_of(values, CLASSES)
    ours = common_to_ours(file, file.vocab_size, values, heads)
    if "token" in heads and file.classifier_dropout is None:
        ours["classifier_dropout"] = file.hidden_dropout
    return ModelConfig.parse(
        {
            **DECODER,
            **ours,
            **to_ours(KEYS, file),
            **_positions(file),
            "activation": activation("activation", file.activation),
            "d_ff": file.ffn_hidden_size or 4 * file.hidden_size,
            "feed_forward_bias": file.bias,
            "residual": _residual(file),
            "n_kv_heads": unless(_kv_heads(file), file.num_attention_heads),
            "embedding_dropout": unless(0.0, file.hidden_dropout),
        }
    )


def _positions(file: FalconFile) -> dict[str, Any]:
    width = file.hidden_size // file.num_attention_heads
    if file.alibi:
        return {"positions": "alibi", "alibi_rounded": True, "alibi_scale": float(max(width, 1) ** -0.5)}
    return rope_to_ours(file, file.max_position_embeddings, width)


def _residual(file: FalconFile) -> str:
    if not file.parallel_attn:
        if file.new_decoder_architecture:
            raise SettingsError(
                "parallel_attn: false is not supported where new_decoder_architecture is true"
            )
        return "sequential"
    norms = file.num_ln_in_parallel_attn or (2 if file.new_decoder_architecture else 1)
    if norms == 2 and not file.new_decoder_architecture:
        raise SettingsError("num_ln_in_parallel_attn: 2 needs new_decoder_architecture: true")
    return "parallel-two-norms" if norms == 2 else "parallel"


def _kv_heads(file: FalconFile) -> int:
    if file.new_decoder_architecture:
        return file.num_kv_heads or file.num_attention_heads
    return 1 if file.multi_query else file.num_attention_heads


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    first, second = NORMS[config.residual]
    shares = (config.n_heads // config.kv_heads, 1, 1)
    return [
        *around(config, "transformer", embedding="word_embeddings.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.{first}.{{part}}"),
        *qkv(f"{layer}.self_attention.query_key_value", dealt(config.kv_heads, shares)),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.self_attention.dense"),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.{second}.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.dense_h_to_4h"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.dense_4h_to_h"),
        Rule(f"decoder.final_norm.{PART}", f"{base}ln_f.{{part}}"),
        *buffers(f"{layer}.self_attention", "maybe_rotary.inv_freq", "rotary_emb.inv_freq"),
    ]


FAMILY = Family("falcon", architecture_of(CLASSES), _fits, _write, _read, _rules, general=1)
