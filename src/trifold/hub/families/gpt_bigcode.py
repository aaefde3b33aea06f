"""GPT-BigCode (StarCoder; Li et al. 2023): GPT-2 whose heads may all share one pair of keys and values."""

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
from trifold.hub.family import Family, architecture_of, heads_of, parse_config, unless
from trifold.hub.rules import AnyRule, Rule, dealt
from trifold.nn import ModelConfig

CLASSES = classes("GPTBigCode", *CLASSIFIERS)
FIXED = {"positions": "learned", "attention_bias": True}
# In which precision softmax is rounded, and what a server of theirs was told.
HARMLESS = GPT_HARMLESS | frozenset(
    """
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size max_sequence_length
    num_key_value_heads pad_key_length pre_allocate_kv_cache validate_runner_input
    """.split()
)


class GPTBigCodeFile(GPTFile):
    """Their keys, types and defaults."""

    activation_function: str = "gelu_pytorch_tanh"
    scale_attn_weights: bool = True
    multi_query: bool = True


def _fits(config: ModelConfig) -> bool:
    scaled = config.attention_scale in (None, 1.0)
    grouped = config.kv_heads in (1, config.n_heads)
    whole = cut_evenly(config) and grouped
    return scaled and whole and decoder_says(config, CLASSES, GPT_SAID | {"attention_scale"}, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    return gpt_to_theirs(config) | {
        "scale_attn_weights": config.attention_scale is None,
        "multi_query": config.kv_heads == 1,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(GPTBigCodeFile, values, HARMLESS)
    return ModelConfig.parse(
        FIXED
        | gpt_to_ours(file, values, heads_of(values, CLASSES))
        | {
            "attention_scale": None if file.scale_attn_weights else 1.0,
            "n_kv_heads": unless(1, file.n_head) if file.multi_query else None,
        }
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    shares = (config.n_heads // config.kv_heads, 1, 1)
    return [
        *around(config, "transformer", embedding="wte.weight"),
        Rule("decoder_embeddings.positions.weight", f"{base}wpe.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.ln_1.{{part}}"),
        *qkv(f"{layer}.attn.c_attn", dealt(config.kv_heads, shares)),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.attn.c_proj"),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.ln_2.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.c_fc"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.c_proj"),
        Rule(f"decoder.final_norm.{PART}", f"{base}ln_f.{{part}}"),
        *buffers(f"{layer}.attn", "bias", "masked_bias"),
    ]


FAMILY = Family("gpt_bigcode", architecture_of(CLASSES), _fits, _write, _read, _rules)
