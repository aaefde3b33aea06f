"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions. DistilGPT2 is one of six layers.

Its matrices lie (in, out), and one of them holds queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trifold.hub.decoders import (
    ATTENTION,
    CLASSIFIERS,
    FEED_FORWARD,
    GPT_HARMLESS,
    GPT_SAID,
    PART,
    B,
    GPTFile,
    around,
    below,
    buffers,
    classes,
    cut_evenly,
    decoder_says,
    gpt_to_ours,
    gpt_to_theirs,
    linear,
    qkv,
)
from trifold.hub.family import Family, architecture_of, heads_of, parse_config
from trifold.hub.rules import TRANSPOSED, AnyRule, Rule, stacked
from trifold.nn import ModelConfig

CLASSES = classes("GPT2", *CLASSIFIERS, "ForQuestionAnswering", lm="LMHeadModel")
FIXED = {"positions": "learned", "attention_bias": True}


class GPT2File(GPTFile):
    """Their keys, types and defaults."""

    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False  # the same numbers, rounded later


def _fits(config: ModelConfig) -> bool:
    said = GPT_SAID | {"attention_scale", "attention_scale_by_layer"}
    scaled = config.attention_scale in (None, 1.0)
    whole = cut_evenly(config) and config.kv_heads == config.n_heads
    return scaled and whole and decoder_says(config, CLASSES, said, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    return gpt_to_theirs(config) | {
        "scale_attn_weights": config.attention_scale is None,
        "scale_attn_by_inverse_layer_idx": config.attention_scale_by_layer,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(GPT2File, values, GPT_HARMLESS)
    return ModelConfig.parse(
        FIXED
        | gpt_to_ours(file, values, heads_of(values, CLASSES))
        | {
            "attention_scale": None if file.scale_attn_weights else 1.0,
            "attention_scale_by_layer": file.scale_attn_by_inverse_layer_idx,
        }
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    return [
        *around(config, "transformer", embedding="wte.weight"),
        Rule("decoder_embeddings.positions.weight", f"{base}wpe.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.ln_1.{{part}}"),
        *qkv(f"{layer}.attn.c_attn", stacked(3), TRANSPOSED),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.attn.c_proj", TRANSPOSED),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.ln_2.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.c_fc", TRANSPOSED),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.c_proj", TRANSPOSED),
        Rule(f"decoder.final_norm.{PART}", f"{base}ln_f.{{part}}"),
        *buffers(f"{layer}.attn", "bias", "masked_bias"),
    ]


FAMILY = Family("gpt2", architecture_of(CLASSES), _fits, _write, _read, _rules)
