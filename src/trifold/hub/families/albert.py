"""ALBERT (Lan et al. 2020): BERT with a narrow embedding table, whose layers share their blocks in groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.encoders import BERT, EMBEDDINGS, TEXT_ENCODER, EncoderRules
from trifold.hub.families import bert
from trifold.hub.family import Family
from trifold.hub.rows import Fields, Group, Row, ids, revise, up_to
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig

MOST_LAYERS = 10_000  # more would cost time and memory before the weights contradict them
LAYERS = up_to(MOST_LAYERS)


def order(rounds: int, groups: int, inner: int) -> tuple[int, ...]:
    """The block of each layer: each round executes one group, which is `inner` blocks in a row."""
    group_of = (int(number / (rounds / groups)) for number in range(rounds))  # as the reference rounds it
    return tuple(group * inner + block for group in group_of for block in range(inner))


def groups_of(config: ModelConfig) -> tuple[int, int, int] | None:
    """(rounds, groups, inner) that give the config's layers their blocks, or None.

    Where no block is used twice there are several, which differ only in the names of their tensors.
    """
    layers = config.n_layers
    if config.block_of_layer is None:
        return layers, layers, 1
    blocks = max(config.block_of_layer) + 1
    # Without shared blocks there are inner ones, or `_load_groups` would have left block_of_layer out.
    for inner in range(2 if blocks == layers else 1, blocks + 1):
        if blocks % inner == 0 and layers % inner == 0:
            found = (layers // inner, blocks // inner, inner)
            if found[1] <= found[0] and order(*found) == config.block_of_layer:
                return found
    return None


def _load_groups(file: Any, fields: Fields) -> Fields:
    rounds, groups, inner = file.num_hidden_layers, file.num_hidden_groups, file.inner_group_num
    if groups > rounds or rounds * inner > MOST_LAYERS:
        raise SettingsError(
            f"num_hidden_groups: {groups} of {inner} for {rounds} layers: every group needs a layer, "
            f"and {MOST_LAYERS:,} layers are the most"
        )
    shared = (groups, inner) != (rounds, 1)
    return {"n_layers": rounds * inner, "block_of_layer": order(rounds, groups, inner) if shared else None}


def _save_groups(config: ModelConfig) -> Fields:
    if (found := groups_of(config)) is None:
        raise SettingsError(f"block_of_layer: {config.block_of_layer} is not an order of equal groups")
    return dict(zip(GROUPS.keys, found, strict=True))


GROUPS = Group(
    {"num_hidden_layers": (LAYERS, 12), "num_hidden_groups": (LAYERS, 1), "inner_group_num": (LAYERS, 1)},
    _load_groups,
    _save_groups,
)

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


RULES = EncoderRules(
    "albert",
    "",
    {},
    inner=EMBEDDINGS
    | {
        "encoder_embeddings.projection": "encoder.embedding_hidden_mapping_in",
        "heads.pooler.dense": "pooler",
    },
    heads={
        "lm_head.dense": "predictions.dense",
        "lm_head.norm": "predictions.LayerNorm",
        "heads.next_sentence.out_proj": "sop_classifier.classifier",
        "heads.{head:sequence|token}.out_proj": "classifier",
        "heads.span.out_proj": "qa_outputs",
    },
    output=("predictions.decoder", "predictions.bias"),
    unused="albert.pooler sop_classifier.classifier",
)


def _rules(config: ModelConfig) -> list[AnyRule]:
    found = groups_of(config)
    assert found is not None, f"not an order of equal groups: {config.block_of_layer}"
    _, groups, inner = found
    blocks = {
        f"encoder.blocks.{group * inner + block}.{ours}": (
            f"encoder.albert_layer_groups.{group}.albert_layers.{block}.{theirs}"
        )
        for group in range(groups)
        for block in range(inner)
        for ours, theirs in LAYER.items()
    }
    return replace(RULES, inner=RULES.inner | blocks)(config)


FAMILY = Family(
    model_type="albert",
    stem="Albert",
    classes={name: fields for name, fields in bert.CLASSES.items() if name != "ForNextSentencePrediction"},
    entries=revise(
        BERT,
        GROUPS,
        Row("embedding_size", "d_embedding", 128, type=up_to(2**20)),
        Row("classifier_dropout_prob", "classifier_dropout", 0.1, nullable=True),
        ids(0, 2, 3, padded=True),
        without="classifier_dropout",
        vocab_size=30000,
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    constants=TEXT_ENCODER,
    rules=_rules,
    # Of the first release; the reference does not read them.
    ignored="classifier_dropout down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks",
)
