"""GPT-J (Wang & Komatsuzaki 2021): attention and feed-forward side by side on one norm, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trifold.hub.decoders import (
    ATTENTION,
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
)
from trifold.hub.family import Architectures, Family, architecture_of, heads_of, parse_config, unless
from trifold.hub.rules import AnyRule, Rule
from trifold.nn import ModelConfig

CLASSES = classes("GPTJ", "ForSequenceClassification", "ForQuestionAnswering")
FIXED = {
    "positions": "rotary",
    "rotary_pairs": "interleaved",
    "residual": "parallel",
    "lm_head_bias": True,
}
HARMLESS = GPT_HARMLESS | {"rotary", "scale_attn_weights"}


class GPTJFile(GPTFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(50400, gt=0)
    n_positions: int = Field(2048, gt=0)
    n_embd: int = Field(4096, gt=0)
    n_layer: int = Field(28, gt=0)
    n_head: int = Field(16, gt=0)
    rotary_dim: int = Field(64, gt=0)
    resid_pdrop: float = Field(0.0, ge=0, lt=1)
    embd_pdrop: float = Field(0.0, ge=0, lt=1)
    attn_pdrop: float = Field(0.0, ge=0, lt=1)
    tie_word_embeddings: bool = False


def fits(config: ModelConfig, table: Architectures = CLASSES) -> bool:
    """Whether GPT-J has all of these parts and no other."""
    whole = cut_evenly(config) and config.kv_heads == config.n_heads
    return whole and decoder_says(config, table, GPT_SAID | {"rotary_width"}, **FIXED)


def write(config: ModelConfig) -> dict[str, object]:
    """Our config as GPT-J's keys."""
    return gpt_to_theirs(config) | {"rotary_dim": config.rotated_width}


def read(values: Mapping[str, Any], table: Architectures = CLASSES) -> ModelConfig:
    """GPT-J's keys as our config."""
    file = parse_config(GPTJFile, values, HARMLESS)
    return ModelConfig.parse(
        FIXED
        | gpt_to_ours(file, values, heads_of(values, table))
        | {"rotary_width": unless(file.rotary_dim, file.n_embd // file.n_head)}
    )


def all_but_qkv(config: ModelConfig) -> list[AnyRule]:
    """The rules that CodeGen has too."""
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    return [
        *around(config, "transformer", embedding="wte.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.ln_1.{{part}}"),
        Rule(f"{ATTENTION}.o_proj.weight", f"{layer}.attn.out_proj.weight"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.fc_in"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.fc_out"),
        Rule(f"decoder.final_norm.{PART}", f"{base}ln_f.{{part}}"),
        *buffers(f"{layer}.attn", "bias", "masked_bias", "causal_mask", "embed_positions"),
    ]


def _rules(config: ModelConfig) -> list[AnyRule]:
    theirs = below(config, "transformer") + "h.{i}.attn.{p}_proj.weight"
    return [*all_but_qkv(config), Rule(f"{ATTENTION}.{{p:q|k|v}}_proj.weight", theirs)]


FAMILY = Family("gptj", architecture_of(CLASSES), fits, write, read, _rules)
