"""BERT (Devlin et al. 2019): an encoder of words and segments, trained on masked words and next sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trifold.hub.encoders import (
    BERT_LAYER,
    BLOCK,
    IDS,
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
    "BertModel": ("pooler",),
    "BertForPreTraining": ("lm", "pooler", "next-sentence"),
    "BertForMaskedLM": ("lm",),
    "BertForNextSentencePrediction": ("pooler", "next-sentence"),
    "BertForSequenceClassification": ("pooler", "sequence"),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
}
SAID = frozenset({*TEXT_KEYS.values(), *IDS, "activation"})
# Of the first release's pooler; the reference never looked at them.
HARMLESS = frozenset(
    """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """.split()
)


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    return {"lm": masked_lm(activation), "sequence": {"classifier_input": "pooler"}}


def _fits(config: ModelConfig) -> bool:
    known = config.activation in ACTIVATIONS.values() and config.n_token_types > 0
    return known and encoder_says(config, CLASSES, SAID, _of_head, **TEXT_ENCODER)


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(TextEncoderFile, values, HARMLESS)
    return ModelConfig.parse(text_to_ours(file, values, CLASSES, _of_head))


def _rules(config: ModelConfig) -> list[AnyRule]:
    base, heads = below(config, "bert"), config.chosen_heads
    rules = [*around(config, "bert"), *modules(BERT_LAYER, BLOCK, f"{base}encoder.layer.{{i}}.")]
    rules += modules(
        {
            "lm_head.dense": "cls.predictions.transform.dense",
            "lm_head.norm": "cls.predictions.transform.LayerNorm",
            "heads.pooler.dense": f"{base}pooler.dense",
            "heads.next_sentence.out_proj": "cls.seq_relationship",
            "heads.{head:sequence|token}.out_proj": "classifier",
            "heads.span.out_proj": "qa_outputs",
        }
    )
    if "lm" in heads:
        rules += output_layer(config, "bert", "cls.predictions.decoder", "cls.predictions.bias")
    if "pooler" not in heads:
        rules += unread(f"{base}pooler.dense", "cls.seq_relationship")
    return rules


FAMILY = Family("bert", architecture_of(CLASSES), _fits, text_to_theirs, _read, _rules)
