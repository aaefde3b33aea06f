"""RoBERTa (Liu et al. 2019), which is BERT without next sentences, whose positions begin behind the padding's id.

CamemBERT (Martin et al. 2020) and XLM-RoBERTa (Conneau et al. 2020) are the same under names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.encoders import (
    BERT_LAYER,
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

SAID = frozenset({*TEXT_KEYS.values(), *IDS, "activation", "position_offset"})


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    """The layer before the words has one activation, whatever the model's is."""
    return {"lm": masked_lm("gelu"), "sequence": {"classifier_transform": "tanh"}}


class RobertaFile(TextEncoderFile):
    """Their keys, types and defaults. Of `max_position_embeddings`, those up to the padding's id are never used."""

    vocab_size: int = Field(50265, gt=0, le=LARGEST_VOCABULARY)
    pad_token_id: int | None = Field(1, ge=0)
    bos_token_id: int | None = Field(0, ge=0)
    eos_token_id: int | list[int] | None = 2


class OfOtherVocabulary(RobertaFile):
    """The same, with the default that the reference gives to the other two."""

    vocab_size: int = Field(30522, gt=0, le=LARGEST_VOCABULARY)


def _write(config: ModelConfig) -> dict[str, object]:
    return text_to_theirs(config) | {"max_position_embeddings": config.max_positions + config.position_offset}


def _rules(config: ModelConfig) -> list[AnyRule]:
    base, heads = below(config, "roberta"), config.chosen_heads
    rules = [*around(config, "roberta"), *modules(BERT_LAYER, BLOCK, f"{base}encoder.layer.{{i}}.")]
    rules += modules(
        {
            "lm_head.dense": "lm_head.dense",
            "lm_head.norm": "lm_head.layer_norm",
            "heads.pooler.dense": f"{base}pooler.dense",
            "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
            "heads.token.out_proj": "classifier",
            "heads.span.out_proj": "qa_outputs",
        }
    )
    if "lm" in heads:
        rules += output_layer(config, "roberta", "lm_head.decoder", "lm_head.bias")
    return rules if "pooler" in heads else [*rules, *unread(f"{base}pooler.dense")]


def _family(model_type: str, name: str, kind: type[RobertaFile]) -> Family:
    classes: Architectures = {
        f"{name}Model": ("pooler",),
        f"{name}ForMaskedLM": ("lm",),
        f"{name}ForSequenceClassification": ("sequence",),
        f"{name}ForTokenClassification": ("token",),
        f"{name}ForQuestionAnswering": ("span",),
    }

    def fits(config: ModelConfig) -> bool:
        known = config.activation in ACTIVATIONS.values() and config.n_token_types > 0
        placed = config.position_offset == config.pad_id + 1
        return known and placed and encoder_says(config, classes, SAID, _of_head, **TEXT_ENCODER)

    def read(values: Mapping[str, Any]) -> ModelConfig:
        file = parse_config(kind, values)
        if file.pad_token_id is None:
            raise SettingsError("pad_token_id: null, but positions begin behind it: name the padding")
        offset = file.pad_token_id + 1
        if file.max_position_embeddings <= offset:
            raise SettingsError(
                f"max_position_embeddings: {file.max_position_embeddings} leaves no position for words, "
                f"which begin at {offset}, behind pad_token_id"
            )
        ours = text_to_ours(file, values, classes, _of_head)
        places = {"position_offset": offset, "max_positions": file.max_position_embeddings - offset}
        return ModelConfig.parse(ours | places)

    return Family(model_type, architecture_of(classes), fits, _write, read, _rules)


FAMILY = _family("roberta", "Roberta", RobertaFile)
CAMEMBERT = _family("camembert", "Camembert", OfOtherVocabulary)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", OfOtherVocabulary)
