"""GPT (Radford et al. 2018): the decoder of 2017 without its cross-attention, post-norm, with learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trifold.hub.decoders import (
    ATTENTION,
    DECODER,
    FEED_FORWARD,
    GPT_HARMLESS,
    GPT_KEYS,
    GPT_SAID,
    PART,
    B,
    DecoderFile,
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
from trifold.hub.rules import TRANSPOSED, AnyRule, Ignored, Rule, stacked
from trifold.nn import ModelConfig

CLASSES = classes("OpenAIGPT", "ForSequenceClassification", lm="LMHeadModel")
FIXED = {"norm_placement": "post", "positions": "learned", "attention_bias": True}
ACTIVATIONS = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


class OpenAIGPTFile(DecoderFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(40478, gt=0)
    n_positions: int = Field(512, gt=0)
    n_embd: int = Field(768, gt=0)
    n_layer: int = Field(12, gt=0)
    n_head: int = Field(12, gt=0)
    afn: str = "gelu"
    resid_pdrop: float = Field(0.1, ge=0, lt=1)
    embd_pdrop: float = Field(0.1, ge=0, lt=1)
    attn_pdrop: float = Field(0.1, ge=0, lt=1)
    layer_norm_epsilon: float = Field(1e-5, gt=0)


def _fits(config: ModelConfig) -> bool:
    whole = cut_evenly(config) and config.kv_heads == config.n_heads and config.d_ff == 4 * config.d_model
    known = config.activation in ACTIVATIONS.values()
    return whole and known and decoder_says(config, CLASSES, GPT_SAID, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    embd = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    return {
        **common_to_theirs(config),
        **to_theirs(GPT_KEYS, config),
        "afn": key_of(ACTIVATIONS, config.activation),
        "embd_pdrop": embd,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(OpenAIGPTFile, values, GPT_HARMLESS)
    return ModelConfig.parse(
        {
            **DECODER,
            **FIXED,
            **common_to_ours(file, file.vocab_size, values, heads_of(values, CLASSES)),
            **to_ours(GPT_KEYS, file),
            "d_ff": 4 * file.n_embd,
            "activation": activation("afn", file.afn, ACTIVATIONS),
            "embedding_dropout": unless(file.embd_pdrop, file.resid_pdrop),
        }
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    return [
        *around(config, "transformer", embedding="tokens_embed.weight"),
        Rule("decoder_embeddings.positions.weight", f"{base}positions_embed.weight"),
        *qkv(f"{layer}.attn.c_attn", stacked(3), TRANSPOSED),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.attn.c_proj", TRANSPOSED),
        Rule(f"{B}.self_attention.after.{PART}", f"{layer}.ln_1.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.c_fc", TRANSPOSED),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.c_proj", TRANSPOSED),
        Rule(f"{B}.feed_forward.after.{PART}", f"{layer}.ln_2.{{part}}"),
        *buffers(f"{layer}.attn", "bias"),
        Ignored(f"{base}position_ids"),
    ]


FAMILY = Family("openai-gpt", architecture_of(CLASSES), _fits, _write, _read, _rules)
