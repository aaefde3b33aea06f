"""ELECTRA (Clark et al. 2020): BERT with narrow embeddings. The discriminator recognizes replaced tokens; the generator
is a masked language model.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families.bert import BERT, CLASSIFIERS, INNER, MASKED_LM, ROBERTA_HEADS, RULES, TEXT_ENCODER
from trifold.hub.family import Family
from trifold.hub.rows import Entry, fixed, resized, revise, row, up_to

# Embeddings as wide as the model have no projection.
WIDTH = Entry(
    {"embedding_size": (up_to(2**20), 128)},
    lambda file, f: {"d_embedding": None if file.embedding_size == f["d_model"] else file.embedding_size},
    lambda config: {"embedding_size": config.embedding_width},
)
HEADS = ("sequence", "token", "span")
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
        WIDTH,
        row("classifier_dropout", "classifier_dropout", None, heads=HEADS, explicit=False),
        row("summary_last_dropout", "classifier_dropout", 0.1, heads=("choice",)),
        fixed(summary_type="first", summary_use_proj=True, summary_activation="gelu"),
        **resized(width=256, heads=4, inner=1024),
    ),
    constants=TEXT_ENCODER,
    rules=replace(
        RULES,
        prefix="electra",
        names={
            **INNER,
            **ROBERTA_HEADS,
            "encoder_embeddings.projection": ".embeddings_project",
            "lm_head.dense": "generator_predictions.dense",
            "lm_head.norm": "generator_predictions.LayerNorm",
            "heads.replaced.dense": "discriminator_predictions.dense",
            "heads.replaced.out_proj": "discriminator_predictions.dense_prediction",
            "heads.choice.dense": "sequence_summary.summary",
        },
        lm_head="generator_lm_head",
        lm_bias="",
        unused="""
        discriminator_predictions.dense discriminator_predictions.dense_prediction generator_lm_head
        generator_predictions.dense generator_predictions.LayerNorm
        """,
    ),
)
