"""ALBERT (Lan et al. 2020): BERT with a narrow table of embeddings, whose layers share their blocks in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.encoders import (
    BLOCK,
    IDS,
    LARGEST_VOCABULARY,
    TEXT_ENCODER,
    TEXT_KEYS,
    TextEncoderFile,
    around,
    below,
    encoder_says,
    masked_lm,
    modules,
    output_layer,
    text_to_ours,
    text_to_theirs,
    unread,
)
from trifold.hub.family import ACTIVATIONS, Architectures, Family, architecture_of, parse_config
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig
from trifold.nn.config import Head

CLASSES: Architectures = {
    "AlbertModel": ("pooler",),
    "AlbertForPreTraining": ("lm", "pooler", "next-sentence"),
    "AlbertForMaskedLM": ("lm",),
    "AlbertForSequenceClassification": ("pooler", "sequence"),
    "AlbertForTokenClassification": ("token",),
    "AlbertForQuestionAnswering": ("span",),
}
SAID = frozenset({*TEXT_KEYS.values(), *IDS, "activation", "d_embedding", "block_of_layer"})
# Of the first release; the reference never looked at them.
HARMLESS = frozenset(
    {"down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"}
)
MOST_LAYERS = 10_000  # more would cost time and memory before the weights contradict them


class AlbertFile(TextEncoderFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(30000, gt=0, le=LARGEST_VOCABULARY)
    embedding_size: int = Field(128, gt=0, le=2**20)
    hidden_size: int = Field(4096, gt=0)
    num_hidden_layers: int = Field(12, gt=0, le=MOST_LAYERS)
    num_hidden_groups: int = Field(1, gt=0, le=MOST_LAYERS)
    num_attention_heads: int = Field(64, gt=0)
    intermediate_size: int = Field(16384, gt=0)
    inner_group_num: int = Field(1, gt=0, le=MOST_LAYERS)
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = Field(0.0, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.0, ge=0, lt=1)
    classifier_dropout_prob: float | None = Field(0.1, ge=0, lt=1)
    bos_token_id: int | None = Field(2, ge=0)
    eos_token_id: int | list[int] | None = 3


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    return {"lm": masked_lm(activation), "sequence": {"classifier_input": "pooler"}}


# --- layers and groups ---------------------------------------------------------------------------------


def order(rounds: int, groups: int, inner: int) -> tuple[int, ...]:
    """The block of each layer: in every round a group works, and in it `inner` blocks one after the other."""
    whose = (int(number / (rounds / groups)) for number in range(rounds))  # as the reference rounds it
    return tuple(group * inner + block for group in whose for block in range(inner))


def groups_of(config: ModelConfig) -> tuple[int, int, int] | None:
    """(rounds, groups, inner) that give the config's layers their blocks; None where none do.

    Where no block works twice several do, and they differ in nothing but the names of their tensors.
    """
    layers = config.n_layers
    if config.block_of_layer is None:
        return layers, layers, 1
    blocks = max(config.block_of_layer) + 1
    alone = blocks == layers  # such a file has inner blocks, or `_read` had left block_of_layer out
    for inner in range(2 if alone else 1, blocks + 1):
        if blocks % inner == 0 and layers % inner == 0:
            found = (layers // inner, blocks // inner, inner)
            if found[1] <= found[0] and order(*found) == config.block_of_layer:
                return found
    return None


# --- config.json ---------------------------------------------------------------------------------------


def _fits(config: ModelConfig) -> bool:
    known = config.activation in ACTIVATIONS.values() and config.n_token_types > 0
    shared = config.d_embedding is not None and groups_of(config) is not None
    return known and shared and encoder_says(config, CLASSES, SAID, _of_head, **TEXT_ENCODER)


def _write(config: ModelConfig) -> dict[str, object]:
    found = groups_of(config)
    assert found is not None, "asked of what does not fit"
    rounds, groups, inner = found
    theirs = text_to_theirs(config)
    drop = theirs.pop("classifier_dropout")
    return theirs | {
        "embedding_size": config.embedding_width,
        "num_hidden_layers": rounds,
        "num_hidden_groups": groups,
        "inner_group_num": inner,
        "classifier_dropout_prob": config.dropout if drop is None else drop,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(AlbertFile, values, HARMLESS)
    rounds, groups, inner = file.num_hidden_layers, file.num_hidden_groups, file.inner_group_num
    if groups > rounds or rounds * inner > MOST_LAYERS:
        raise SettingsError(
            f"num_hidden_groups: {groups} of {inner} for {rounds} layers: every group needs a layer, "
            f"and {MOST_LAYERS:,} layers are the most"
        )
    return ModelConfig.parse(
        text_to_ours(file, values, CLASSES, _of_head)
        | {
            "d_embedding": file.embedding_size,
            "n_layers": rounds * inner,
            "block_of_layer": None if (groups, inner) == (rounds, 1) else order(rounds, groups, inner),
            "classifier_dropout": file.classifier_dropout_prob,
        }
    )


# --- weights -------------------------------------------------------------------------------------------

LAYER = {
    "self_attention.sublayer.q_proj": "attention.query",
    "self_attention.sublayer.k_proj": "attention.key",
    "self_attention.sublayer.v_proj": "attention.value",
    "self_attention.sublayer.o_proj": "attention.dense",
    "self_attention.after": "attention.LayerNorm",
    "feed_forward.sublayer.in_proj": "ffn",
    "feed_forward.sublayer.out_proj": "ffn_output",
    "feed_forward.after": "full_layer_layer_norm",
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    found = groups_of(config)
    assert found is not None, "asked of what does not fit"
    base, heads, (_, groups, inner) = below(config, "albert"), config.chosen_heads, found
    rules = around(config, "albert")
    for number in range(groups * inner):
        group, block = divmod(number, inner)
        theirs = f"{base}encoder.albert_layer_groups.{group}.albert_layers.{block}."
        rules += modules(LAYER, BLOCK.replace("{i}", str(number)), theirs)
    rules += modules(
        {
            "encoder_embeddings.projection": f"{base}encoder.embedding_hidden_mapping_in",
            "lm_head.dense": "predictions.dense",
            "lm_head.norm": "predictions.LayerNorm",
            "heads.pooler.dense": f"{base}pooler",
            "heads.next_sentence.out_proj": "sop_classifier.classifier",
            "heads.{head:sequence|token}.out_proj": "classifier",
            "heads.span.out_proj": "qa_outputs",
        }
    )
    if "lm" in heads:
        rules += output_layer(config, "albert", "predictions.decoder", "predictions.bias")
    if "pooler" not in heads:
        rules += unread(f"{base}pooler", "sop_classifier.classifier")
    return rules


FAMILY = Family("albert", architecture_of(CLASSES), _fits, _write, _read, _rules)
