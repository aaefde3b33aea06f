"""ELECTRA (Clark et al. 2020): BERT with narrow embeddings. The discriminator recognizes replaced tokens; the generator
is a masked language model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trifold.hub.families.bert import BERT, CLASSIFIERS, EMBEDDINGS, LAYER, MASKED_LM, RULES, TEXT_ENCODER
from trifold.hub.family import Family, in_layer
from trifold.hub.rows import Entry, Fields, fixed, revise, row, up_to
from trifold.nn import ModelConfig


def _load_width(file: Any, fields: Fields) -> Fields:
    """Embeddings as wide as the model have no projection."""
    return {"d_embedding": None if file.embedding_size == fields["d_model"] else file.embedding_size}


def _save_width(config: ModelConfig) -> Fields:
    return {"embedding_size": config.embedding_width}


FAMILY = Family(
    model_type="electra",
    stem="Electra",
    classes={
        "ForPreTraining": {"heads": ("replaced",)},
        "Model": {"heads": ()},
        # These heads have this activation in any case; that of "replaced" is the model's.
        "ForMaskedLM": MASKED_LM | {"lm_head_transform": "gelu"},
        **CLASSIFIERS,
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "gelu"},
        "ForMultipleChoice": {"heads": ("choice",), "classifier_transform": "gelu"},
    },
    entries=revise(
        BERT,
        Entry({"embedding_size": (up_to(2**20), 128)}, _load_width, _save_width),
        row(
            *("classifier_dropout", "classifier_dropout", None),
            heads=("sequence", "token", "span"),
            explicit=False,
        ),
        row("summary_last_dropout", "classifier_dropout", 0.1, heads=("choice",)),
        fixed(summary_type="first", summary_use_proj=True, summary_activation="gelu"),
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    constants=TEXT_ENCODER,
    rules=replace(
        RULES,
        prefix="electra",
        names={
            **EMBEDDINGS,
            "encoder_embeddings.projection": ".embeddings_project",
            **in_layer(".encoder.layer.{i}.", LAYER),
            "lm_head.dense": "generator_predictions.dense",
            "lm_head.norm": "generator_predictions.LayerNorm",
            "heads.replaced.dense": "discriminator_predictions.dense",
            "heads.replaced.out_proj": "discriminator_predictions.dense_prediction",
            "heads.choice.dense": "sequence_summary.summary",
            "heads.sequence.{layer:dense|out_proj}": "classifier.{layer}",
            "heads.{head:token|choice}.out_proj": "classifier",
            "heads.span.out_proj": "qa_outputs",
        },
        lm_head="generator_lm_head",
        lm_bias="",
        unused="""
        discriminator_predictions.dense discriminator_predictions.dense_prediction generator_lm_head
        generator_predictions.dense generator_predictions.LayerNorm
        """,
    ),
)
