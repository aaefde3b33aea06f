"""DistilBERT (Sanh et al. 2019): BERT with half the layers, and neither segments nor pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.encoders import (
    BLOCK,
    EMBEDDINGS,
    IDS,
    TEXT_ENCODER,
    around,
    below,
    brought,
    encoder_says,
    head_to_ours,
    head_to_theirs,
    masked_lm,
    modules,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    Family,
    activation,
    architecture_of,
    heads_of,
    ids_to_ours,
    ids_to_theirs,
    key_of,
    parse_config,
    to_ours,
    to_theirs,
)
from trifold.hub.rules import AnyRule, Copy, Renamed
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

CLASSES: Architectures = {
    "DistilBertModel": (),
    "DistilBertForMaskedLM": ("lm",),
    "DistilBertForSequenceClassification": ("sequence",),
    "DistilBertForTokenClassification": ("token",),
    "DistilBertForQuestionAnswering": ("span",),
}
FIXED = TEXT_ENCODER | {"norm_epsilon": 1e-12}  # not a key of theirs
KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "dim": "d_model",
    "n_layers": "n_layers",
    "n_heads": "n_heads",
    "hidden_dim": "d_ff",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "tie_word_embeddings": "tie_lm_head",
}
# Each head has a dropout of its own.
DROPOUTS: Mapping[Head, str] = {"sequence": "seq_classif_dropout", "span": "qa_dropout"}
SAID = frozenset({*KEYS.values(), *IDS, "activation"})
HARMLESS = frozenset({"sinusoidal_pos_embds", "tie_weights_"})  # the table of positions is stored in any case


class DistilBertFile(Settings):
    """Their keys, types and defaults."""

    vocab_size: int = Field(30522, gt=0)
    max_position_embeddings: int = Field(512, gt=0)
    n_layers: int = Field(6, gt=0)
    n_heads: int = Field(12, gt=0)
    dim: int = Field(768, gt=0)
    hidden_dim: int = Field(3072, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    activation: str = "gelu"
    qa_dropout: float = Field(0.1, ge=0, lt=1)
    seq_classif_dropout: float = Field(0.2, ge=0, lt=1)
    pad_token_id: int | None = Field(0, ge=0)
    bos_token_id: int | None = Field(None, ge=0)
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True

    # What only other models have.
    is_decoder: Literal[False] = False
    is_encoder_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    return {"lm": masked_lm(activation), "sequence": {"classifier_transform": "relu"}}


def _fits(config: ModelConfig) -> bool:
    said = SAID | ({"classifier_dropout"} if DROPOUTS.keys() & set(config.chosen_heads) else set())
    return config.activation in ACTIVATIONS.values() and encoder_says(
        config, CLASSES, said, _of_head, **FIXED
    )


def _write(config: ModelConfig) -> dict[str, object]:
    drop = config.dropout if config.classifier_dropout is None else config.classifier_dropout
    return {
        **to_theirs(KEYS, config),
        **ids_to_theirs(config),
        **head_to_theirs(config),
        **{DROPOUTS[head]: drop for head in config.chosen_heads if head in DROPOUTS},
        "pad_token_id": config.pad_id,
        "activation": key_of(ACTIVATIONS, config.activation),
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(DistilBertFile, values, HARMLESS)
    heads, inner = heads_of(values, CLASSES), activation("activation", file.activation)
    ids = ids_to_ours(file.vocab_size, pad=file.pad_token_id, bos=file.bos_token_id, eos=file.eos_token_id)
    return ModelConfig.parse(
        {
            **FIXED,
            **to_ours(KEYS, file),
            **ids,
            **head_to_ours(values, heads),
            **brought(_of_head, heads, inner),
            "classifier_dropout": next((getattr(file, DROPOUTS[h]) for h in heads if h in DROPOUTS), None),
            "activation": inner,
        }
    )


LAYER = {
    "self_attention.sublayer.q_proj": "attention.q_lin",
    "self_attention.sublayer.k_proj": "attention.k_lin",
    "self_attention.sublayer.v_proj": "attention.v_lin",
    "self_attention.sublayer.o_proj": "attention.out_lin",
    "self_attention.after": "sa_layer_norm",
    "feed_forward.sublayer.in_proj": "ffn.lin1",
    "feed_forward.sublayer.out_proj": "ffn.lin2",
    "feed_forward.after": "output_layer_norm",
}
HEADS = {
    "lm_head.dense": "vocab_transform",
    "lm_head.norm": "vocab_layer_norm",
    "lm_head": "vocab_projector",
    "heads.sequence.dense": "pre_classifier",
    "heads.{head:sequence|token}.out_proj": "classifier",
    "heads.span.out_proj": "qa_outputs",
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "distilbert")
    layer = f"{base}transformer.layer.{{i}}."
    rules = [*around(config, "distilbert"), *modules(LAYER, BLOCK, layer), *modules(HEADS)]
    if "lm" in config.chosen_heads and config.tie_lm_head:
        table = f"{base}{EMBEDDINGS['encoder_embeddings.tokens']}.weight"
        rules += [Copy("vocab_projector.weight", of=table), Renamed("vocab_projector.weight", table)]
    return rules


FAMILY = Family("distilbert", architecture_of(CLASSES), _fits, _write, _read, _rules)
