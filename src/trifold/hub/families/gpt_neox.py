"""GPT-NeoX and Pythia (Black et al. 2022): attention and feed-forward side by side on two norms, partly rotary.

Queries, keys and values lie in one matrix, head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
)
from trifold.hub.rope import ROPE_SAID, RopeFile, rope_fits, rope_to_ours, rope_to_theirs
from trifold.hub.rules import AnyRule, Renamed, Rule, dealt
from trifold.nn import ModelConfig

CLASSES = classes("GPTNeoX", *CLASSIFIERS, "ForQuestionAnswering")
KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "dropout",
    "layer_norm_eps": "norm_epsilon",
    "max_position_embeddings": "max_positions",
    "attention_bias": "attention_bias",
}
SAID = ROPE_SAID | {*KEYS.values(), "activation", "residual", "d_head", "n_kv_heads"}
RESIDUALS = {True: "parallel-two-norms", False: "sequential"}
HARMLESS = frozenset(
    {"attention_probs_dropout_prob", "hidden_dropout_prob"}
)  # the reference does not look at them


class GPTNeoXFile(RopeFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(50432, gt=0)
    hidden_size: int = Field(6144, gt=0)
    num_hidden_layers: int = Field(44, gt=0)
    num_attention_heads: int = Field(64, gt=0)
    intermediate_size: int = Field(24576, gt=0)
    hidden_act: str = "gelu"
    rotary_pct: float = Field(0.25, gt=0, le=1)
    rotary_emb_base: float = Field(10_000.0, gt=0)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    max_position_embeddings: int = Field(2048, gt=0)
    layer_norm_eps: float = Field(1e-5, gt=0)
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True
    attention_bias: bool = True


def _fits(config: ModelConfig) -> bool:
    whole = cut_evenly(config) and config.kv_heads == config.n_heads and config.residual in RESIDUALS.values()
    return whole and rope_fits(config, part=True) and decoder_says(config, CLASSES, SAID)


def _write(config: ModelConfig) -> dict[str, object]:
    return {
        **common_to_theirs(config),
        **to_theirs(KEYS, config),
        **rope_to_theirs(config, part=True),
        "hidden_act": key_of(ACTIVATIONS, config.activation),
        "use_parallel_residual": config.residual != "sequential",
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(GPTNeoXFile, values, HARMLESS)
    width = file.hidden_size // file.num_attention_heads
    return ModelConfig.parse(
        {
            **DECODER,
            **common_to_ours(file, file.vocab_size, values, heads_of(values, CLASSES)),
            **to_ours(KEYS, file),
            **rope_to_ours(
                file, file.max_position_embeddings, width, part=file.rotary_pct, theta=file.rotary_emb_base
            ),
            "activation": activation("hidden_act", file.hidden_act),
            "residual": RESIDUALS[file.use_parallel_residual],
        }
    )


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "gpt_neox")
    layer = f"{base}layers.{{i}}"
    return [
        *around(config, "gpt_neox", embedding="embed_in.weight", lm_head="embed_out"),
        Renamed("lm_head.weight", "embed_out.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.input_layernorm.{{part}}"),
        *qkv(f"{layer}.attention.query_key_value", dealt(config.n_heads, (1, 1, 1))),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.attention.dense"),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.post_attention_layernorm.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.dense_h_to_4h"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.dense_4h_to_h"),
        Rule(f"decoder.final_norm.{PART}", f"{base}final_layer_norm.{{part}}"),
        *buffers(f"{layer}.attention", "bias", "masked_bias", "rotary_emb.inv_freq"),
    ]


FAMILY = Family("gpt_neox", architecture_of(CLASSES), _fits, _write, _read, _rules)
