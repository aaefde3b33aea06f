"""BART (Lewis et al. 2020): the Transformer of 2017 with learned positions and a norm on the embeddings.

Positions begin in row 2 of their table. The reference adds to the logits a bias that is never learnt and is zero in
most files; where we have none, it must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    Ends,
    Family,
    activation,
    architecture_of,
    first_end,
    heads_of,
    key_of,
    labels_of,
    labels_written,
    parse_config,
    says,
    unless,
)
from trifold.hub.rules import LEADING_AXIS, AnyRule, Copy, Ignored, Renamed, Rule, Zeros
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

CLASSES: Architectures = {
    "BartForConditionalGeneration": ("lm",),
    "BartModel": (),
    "BartForSequenceClassification": ("sequence",),
    "BartForQuestionAnswering": ("span",),
}
LABELS = 3  # where nothing is said

# --- config.json ---------------------------------------------------------------------------------------


class BartFile(Settings):
    """Their keys, types and defaults; a field that allows one value is a part which we do not have."""

    vocab_size: int = Field(50265, gt=0)
    max_position_embeddings: int = Field(1024, gt=0)
    d_model: int = Field(1024, gt=0)
    encoder_layers: int = Field(12, gt=0)
    decoder_layers: int = Field(12, gt=0)
    num_hidden_layers: int | None = None  # of the encoder, said again
    encoder_attention_heads: int = Field(16, gt=0)
    decoder_attention_heads: int = Field(16, gt=0)
    encoder_ffn_dim: int = Field(4096, gt=0)
    decoder_ffn_dim: int = Field(4096, gt=0)
    activation_function: str = "gelu"
    scale_embedding: bool = False
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    classifier_dropout: float = Field(0.0, ge=0, lt=1)
    pad_token_id: int = Field(1, ge=0)
    bos_token_id: int = Field(0, ge=0)
    eos_token_id: Ends = 2
    decoder_start_token_id: int = Field(2, ge=0)

    # What only other models have.
    is_encoder_decoder: Literal[True] = True
    is_decoder: Literal[False] = False
    tie_word_embeddings: Literal[True] = True
    encoder_layerdrop: float = Field(0.0, ge=0, le=0)
    decoder_layerdrop: float = Field(0.0, ge=0, le=0)
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[True] = True
    add_final_layer_norm: Literal[False] = False
    add_bias_logits: Literal[False] = False
    static_position_embeddings: Literal[False] = False
    extra_pos_embeddings: Literal[2] = 2

    # Ours: files of others have it not.
    lm_head_bias: bool = True


# The second is an old name that stands beside the new one; the third is about generating, and no longer minded.
HARMLESS = frozenset({"init_std", "classif_dropout", "force_bos_token_to_be_generated"})

# What BART always is, and by its head.
FIXED: dict[str, Any] = {
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "norm_epsilon": 1e-5,  # not a key of theirs
    "attention_bias": True,
}
OF_HEAD: dict[str, dict[str, Any]] = {
    "lm": {},
    "sequence": {"classifier_input": "eos", "classifier_transform": "tanh"},
    "span": {"classifier_dropout": 0.0},
}
# What the keys of a file say, or `fits` has looked at; every other key of ours must be at its default.
SAID = frozenset(
    """
    vocab_size max_positions d_model n_layers n_decoder_layers n_heads n_decoder_heads n_kv_heads d_head d_ff
    d_decoder_ff scale_embeddings activation heads dropout attention_dropout activation_dropout pad_id bos_id eos_id
    decoder_start_id
    """.split()
)
SAID_OF_HEAD = {"lm": {"lm_head_bias"}, "sequence": {"n_labels", "classifier_dropout"}}


def _fixed(heads: tuple[Head, ...]) -> dict[str, Any]:
    return FIXED | {key: value for head in heads for key, value in OF_HEAD[head].items()}


def fits(config: ModelConfig) -> bool:
    """Whether BART has all of these parts, and no other."""
    heads = config.chosen_heads
    return (
        heads in CLASSES.values()
        and says(config, SAID.union(*(SAID_OF_HEAD.get(head, ()) for head in heads)), **_fixed(heads))
        and all(
            side.kv_heads == side.n_heads and side.head_width * side.n_heads == config.d_model
            for side in (config, config.decoder_side)
        )
        and config.activation in ACTIVATIONS.values()
    )


def _write(config: ModelConfig) -> dict[str, object]:
    other, drop = config.decoder_side, config.classifier_dropout
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "d_model": config.d_model,
        "encoder_layers": config.n_layers,
        "decoder_layers": other.n_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": other.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": other.d_ff,
        "activation_function": key_of(ACTIVATIONS, config.activation),
        "scale_embedding": config.scale_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "classifier_dropout": config.dropout if drop is None else drop,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,  # left out, it would be 2
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "lm_head_bias": config.lm_head_bias,
        **(labels_written(config.n_labels) if "sequence" in config.chosen_heads else {}),
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file, heads = parse_config(BartFile, values, HARMLESS), heads_of(values, CLASSES)
    if file.num_hidden_layers not in (None, file.encoder_layers):
        raise SettingsError(
            f"num_hidden_layers: {file.num_hidden_layers} contradicts encoder_layers {file.encoder_layers}"
        )
    ours = {
        **_fixed(heads),
        "vocab_size": file.vocab_size,
        "max_positions": file.max_position_embeddings,
        "d_model": file.d_model,
        "n_layers": file.encoder_layers,
        "n_decoder_layers": unless(file.decoder_layers, file.encoder_layers),
        "n_heads": file.encoder_attention_heads,
        "n_decoder_heads": unless(file.decoder_attention_heads, file.encoder_attention_heads),
        "d_ff": file.encoder_ffn_dim,
        "d_decoder_ff": unless(file.decoder_ffn_dim, file.encoder_ffn_dim),
        "scale_embeddings": file.scale_embedding,
        "activation": activation("activation_function", file.activation_function),
        "heads": unless(heads, ("lm",)),
        "lm_head_bias": file.lm_head_bias and "lm" in heads,
        "dropout": file.dropout,
        "attention_dropout": file.attention_dropout,
        "activation_dropout": file.activation_dropout,
        "pad_id": file.pad_token_id,
        "bos_id": file.bos_token_id,
        "eos_id": first_end(file.eos_token_id),
        "decoder_start_id": unless(file.decoder_start_token_id, file.bos_token_id),
    }
    if "sequence" in heads:
        ours["n_labels"] = labels_of({"num_labels": LABELS, **values})
        ours["classifier_dropout"] = unless(file.classifier_dropout, file.dropout)
    return ModelConfig.parse(ours)


# --- weights -------------------------------------------------------------------------------------------

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


def _rules(config: ModelConfig) -> list[AnyRule]:
    model = "model." if config.chosen_heads else ""  # the bare model is not wrapped in another
    stack, part, shared = "{stack:encoder|decoder}", "{part:weight|bias}", f"{model}shared.weight"
    block, layer = f"{stack}.blocks.{{i}}", f"{model}{{stack}}.layers.{{i}}"
    table: list[AnyRule] = [
        Rule("encoder_embeddings.tokens.weight", shared),
        Copy(f"{model}{stack}.embed_tokens.weight", of=shared),
        Renamed(f"{model}{stack}.embed_tokens.weight", shared),
        Rule(f"{stack}_embeddings.positions.weight", f"{model}{{stack}}.embed_positions.weight"),
        Rule(f"{stack}_embeddings.norm.{part}", f"{model}{{stack}}.layernorm_embedding.{{part}}"),
        Rule(f"{block}.feed_forward.sublayer.in_proj.{part}", f"{layer}.fc1.{{part}}"),
        Rule(f"{block}.feed_forward.sublayer.out_proj.{part}", f"{layer}.fc2.{{part}}"),
        Rule(f"{block}.feed_forward.after.{part}", f"{layer}.final_layer_norm.{{part}}"),
        Ignored(f"{model}{stack}.version"),
    ]
    for ours, theirs in ATTENTIONS.items():
        inside = f"{block}.{ours}.sublayer"
        table += [
            Rule(f"{inside}.{{p:q|k|v}}_proj.{part}", f"{layer}.{theirs}.{{p}}_proj.{{part}}"),
            Rule(f"{inside}.o_proj.{part}", f"{layer}.{theirs}.out_proj.{{part}}"),
            Rule(f"{block}.{ours}.after.{part}", f"{layer}.{theirs}_layer_norm.{{part}}"),
        ]
    return [*table, *_heads(config, shared)]


def _heads(config: ModelConfig, shared: str) -> list[AnyRule]:
    if "lm" not in config.chosen_heads:
        return [
            Rule("heads.sequence.{layer:dense|out_proj}.{*rest}", "classification_head.{layer}.{rest}"),
            Rule("heads.span.out_proj.{*rest}", "qa_outputs.{rest}"),
        ]
    tied = Copy("lm_head.weight", of=shared)
    if config.lm_head_bias:
        return [tied, Rule("lm_head.bias", "final_logits_bias", LEADING_AXIS)]
    remedy, beside = "write lm_head_bias: true in config.json", "encoder_embeddings.tokens.weight"
    return [tied, Zeros("final_logits_bias", beside, lambda weight: (1, weight.shape[0]), remedy)]


FAMILY = Family("bart", architecture_of(CLASSES), fits, _write, _read, _rules)
