"""DistilBERT (Sanh et al. 2019): BERT with half the layers, and neither segments nor pooler."""

from __future__ import annotations

from trifold.hub.encoders import (
    CLASSIFIERS,
    EMBEDDINGS,
    ENCODER_ONLY,
    MASKED_LM,
    TEXT_ENCODER,
    EncoderRules,
)
from trifold.hub.family import Family
from trifold.hub.rows import ACTIVATIONS, Fields, Row, ids, up_to
from trifold.hub.rules import AnyRule, Copy, Renamed
from trifold.nn import ModelConfig

CLASSES: dict[str, Fields] = {
    "Model": {"heads": ()},
    "ForMaskedLM": {"heads": ("lm",), **MASKED_LM},
    **CLASSIFIERS,
    "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "relu"},
}
RULES = EncoderRules(
    "distilbert",
    "transformer.layer.{i}.",
    {
        "self_attention.sublayer.q_proj": "attention.q_lin",
        "self_attention.sublayer.k_proj": "attention.k_lin",
        "self_attention.sublayer.v_proj": "attention.v_lin",
        "self_attention.sublayer.o_proj": "attention.out_lin",
        "self_attention.after": "sa_layer_norm",
        "feed_forward.sublayer.in_proj": "ffn.lin1",
        "feed_forward.sublayer.out_proj": "ffn.lin2",
        "feed_forward.after": "output_layer_norm",
    },
    inner=EMBEDDINGS,
    heads={
        "lm_head.dense": "vocab_transform",
        "lm_head.norm": "vocab_layer_norm",
        "lm_head": "vocab_projector",
        "heads.sequence.dense": "pre_classifier",
        "heads.{head:sequence|token}.out_proj": "classifier",
        "heads.span.out_proj": "qa_outputs",
    },
)


def _rules(config: ModelConfig) -> list[AnyRule]:
    rules = RULES(config)
    if "lm" in config.chosen_heads and config.tie_lm_head:
        table = "distilbert.embeddings.word_embeddings.weight"
        rules += [Copy("vocab_projector.weight", of=table), Renamed("vocab_projector.weight", table)]
    return rules


FAMILY = Family(
    model_type="distilbert",
    stem="DistilBert",
    classes=CLASSES,
    entries=(
        Row("vocab_size", "vocab_size", 30522, type=up_to(2**31)),
        Row("max_position_embeddings", "max_positions", 512),
        Row("n_layers", "n_layers", 6),
        Row("n_heads", "n_heads", 12),
        Row("dim", "d_model", 768),
        Row("hidden_dim", "d_ff", 3072),
        Row("dropout", "dropout", 0.1),
        Row("attention_dropout", "attention_dropout", 0.1),
        Row("activation", "activation", "gelu", map=ACTIVATIONS),
        Row("qa_dropout", "classifier_dropout", 0.1, heads=("span",)),
        Row("seq_classif_dropout", "classifier_dropout", 0.2, heads=("sequence",)),
        ids(0, padded=True),
        Row("tie_word_embeddings", "tie_lm_head", True),
        ENCODER_ONLY,
    ),
    constants=TEXT_ENCODER | {"norm_epsilon": 1e-12},
    rules=_rules,
    ignored="sinusoidal_pos_embds tie_weights_",  # the table of positions is stored in any case
)
