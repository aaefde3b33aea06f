"""RoBERTa (Liu et al. 2019): BERT without next sentences, whose positions begin after the padding's id.

CamemBERT (Martin et al. 2020) and XLM-RoBERTa (Conneau et al. 2020) are the same under other names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.errors import SettingsError
from trifold.hub.encoders import BERT, BERT_LAYER, CLASSIFIERS, EMBEDDINGS, TEXT_ENCODER, EncoderRules
from trifold.hub.family import Family
from trifold.hub.rows import Fields, Group, ids, revise, type_of
from trifold.nn import ModelConfig

CLASSES: dict[str, Fields] = {
    "Model": {"heads": ("pooler",)},
    # The dense layer has this activation, whatever the model's is.
    "ForMaskedLM": {"heads": ("lm",), "lm_head_transform": "gelu", "lm_head_bias": True},
    **CLASSIFIERS,
    "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "tanh"},
}


def _load_positions(file: Any, fields: Fields) -> Fields:
    """Of `max_position_embeddings`, those up to the padding's id are never used."""
    if file.pad_token_id is None:
        raise SettingsError("pad_token_id: null, but positions begin after it; name the padding")
    offset, rows = file.pad_token_id + 1, file.max_position_embeddings
    if rows <= offset:
        raise SettingsError(
            f"max_position_embeddings: {rows} leaves no position for tokens, which begin at {offset}, "
            "after pad_token_id"
        )
    return {"position_offset": offset, "max_positions": rows - offset}


def _save_positions(config: ModelConfig) -> Fields:
    return {"max_position_embeddings": config.max_positions + config.position_offset}


POSITIONS = Group(
    {"max_position_embeddings": (type_of("max_positions"), 512)}, _load_positions, _save_positions
)
ENTRIES = revise(BERT, ids(1, 0, 2, padded=True), POSITIONS)

RULES = EncoderRules(
    "roberta",
    "encoder.layer.{i}.",
    BERT_LAYER,
    inner=EMBEDDINGS | {"heads.pooler.dense": "pooler.dense"},
    heads={
        "lm_head.dense": "lm_head.dense",
        "lm_head.norm": "lm_head.layer_norm",
        "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
        "heads.token.out_proj": "classifier",
        "heads.span.out_proj": "qa_outputs",
    },
    output=("lm_head.decoder", "lm_head.bias"),
    unused="roberta.pooler.dense",
)
FAMILY = Family(
    model_type="roberta",
    stem="Roberta",
    classes=CLASSES,
    entries=revise(ENTRIES, vocab_size=50265),
    constants=TEXT_ENCODER,
    rules=RULES,
)
CAMEMBERT = replace(FAMILY, model_type="camembert", stem="Camembert", entries=ENTRIES)
XLM_ROBERTA = replace(FAMILY, model_type="xlm-roberta", stem="XLMRoberta", entries=ENTRIES)
