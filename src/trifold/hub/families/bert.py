"""BERT (Devlin et al. 2019): an encoder of tokens and segments, pretrained on masked tokens and next sentences."""

from __future__ import annotations

from trifold.hub.encoders import (
    BERT,
    BERT_LAYER,
    CLASSIFIERS,
    EMBEDDINGS,
    MASKED_LM,
    TEXT_ENCODER,
    EncoderRules,
)
from trifold.hub.family import Family
from trifold.hub.rows import Fields

CLASSES: dict[str, Fields] = {
    "Model": {"heads": ("pooler",)},
    "ForPreTraining": {"heads": ("lm", "pooler", "next-sentence"), **MASKED_LM},
    "ForMaskedLM": {"heads": ("lm",), **MASKED_LM},
    "ForNextSentencePrediction": {"heads": ("pooler", "next-sentence")},
    **CLASSIFIERS,
    "ForSequenceClassification": {"heads": ("pooler", "sequence"), "classifier_input": "pooler"},
}


RULES = EncoderRules(
    "bert",
    "encoder.layer.{i}.",
    BERT_LAYER,
    inner=EMBEDDINGS | {"heads.pooler.dense": "pooler.dense"},
    heads={
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.norm": "cls.predictions.transform.LayerNorm",
        "heads.next_sentence.out_proj": "cls.seq_relationship",
        "heads.{head:sequence|token}.out_proj": "classifier",
        "heads.span.out_proj": "qa_outputs",
    },
    output=("cls.predictions.decoder", "cls.predictions.bias"),
    unused="bert.pooler.dense cls.seq_relationship",
)
FAMILY = Family(
    model_type="bert",
    stem="Bert",
    classes=CLASSES,
    entries=BERT,
    constants=TEXT_ENCODER,
    rules=RULES,
    # Of the first release's pooler; the reference does not read them.
    ignored="""
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """,
)
