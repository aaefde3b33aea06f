"""DeBERTa v2 and v3 (He et al. 2021, 2023): BERT with disentangled content and positions in the scores.

Version 3 shares the projections of both, and was pretrained as the discriminator of ELECTRA. Without
`relative_attention` there is no position in the scores. The convolution of the larger v2 models is not supported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.families.bert import BERT, CHOICE, CLASSIFIERS, MASKED_LM, RULES, TEXT_ENCODER, block_names
from trifold.hub.family import Family, in_layer
from trifold.hub.rows import ACTIVATIONS, Entry, Fields, fixed, repeats, resized, revise, row
from trifold.hub.rules import AnyRule, Ignored, Renamed
from trifold.nn import ModelConfig

SCORES = {"both": ["p2c", "c2p"], "content-to-position": ["c2p"], "position-to-content": ["p2c"]}


def _load_positions(file: Any, fields: Fields) -> Fields:
    norm, kinds = file.norm_rel_ebd.lower(), file.pos_att_type or []
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    if norm not in ("none", "layer_norm"):
        raise SettingsError(f"norm_rel_ebd: {file.norm_rel_ebd!r} is not known; known: none, layer_norm")
    if not file.relative_attention:
        if kinds or norm != "none":
            key = "pos_att_type" if kinds else "norm_rel_ebd"
            raise SettingsError(f"{key}: {getattr(file, key)!r} needs relative_attention: true")
        return {"positions": "learned" if file.position_biased_input else "none"}
    scores = [ours for ours, theirs in SCORES.items() if sorted(theirs) == sorted(kinds)]
    if not scores:
        raise SettingsError(f"pos_att_type: {file.pos_att_type!r} is not known; known: p2c|c2p, c2p, p2c")
    farthest = file.max_relative_positions if file.max_relative_positions > 0 else fields["max_positions"]
    log = file.position_buckets > 0
    return {
        "positions": "disentangled",
        "learned_positions": file.position_biased_input,
        "relative_buckets": 2 * (file.position_buckets if log else farthest),
        "relative_scores": scores[0],
        "relative_shared": file.share_att_key,
        "relative_norm": norm == "layer_norm",
        **({"relative_distance": farthest} if log else {"relative_log": False}),
    }


def _save_positions(config: ModelConfig) -> Fields:
    if config.positions != "disentangled":
        return {"relative_attention": False, "position_biased_input": config.positions == "learned"}
    span, log = config.relative_buckets // 2, config.relative_log
    return {
        "relative_attention": True,
        "position_biased_input": config.learned_positions,
        "position_buckets": span if log else -1,
        "max_relative_positions": config.relative_distance if log else span,
        "pos_att_type": SCORES[config.relative_scores],
        "share_att_key": config.relative_shared,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
    }


def _load_head(file: Any, fields: Fields) -> Fields:
    """`legacy` changes only names; without it, the head uses the table of embeddings in any case."""
    return {"tie_lm_head": file.tie_word_embeddings or not file.legacy}


LAYER = block_names(
    "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense "
    "attention.output.LayerNorm",
    "intermediate.dense output.dense output.LayerNorm",
)
LAYER |= {"self_attention.sublayer.relative.k_proj": "attention.self.pos_key_proj"}
LAYER |= {"self_attention.sublayer.relative.q_proj": "attention.self.pos_query_proj"}
# Pretrained models have heads with these names.
LM_HEAD = "lm_predictions.lm_head"
NAMES = {
    f"{LM_HEAD}.bias": "cls.predictions.bias",
    f"{LM_HEAD}.{{layer:dense|LayerNorm}}.{{part}}": "cls.predictions.transform.{layer}.{part}",
}


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    if "lm" in config.chosen_heads:
        return [Renamed(old, new) for old, new in NAMES.items()]
    return [Ignored(name) for name in NAMES]


POSITIONS = Entry(
    {
        "relative_attention": (bool, False),
        "position_biased_input": (bool, True),
        "position_buckets": (Annotated[int, Field(le=2**20)], -1),
        "max_relative_positions": (Annotated[int, Field(le=2**20)], -1),
        "pos_att_type": (str | list[str] | None, None),
        "share_att_key": (bool, False),
        "norm_rel_ebd": (str, "none"),
    },
    _load_positions,
    _save_positions,
)
FAMILY = Family(
    model_type="deberta-v2",
    stem="DebertaV2",
    classes={
        "Model": {"heads": ()},
        "ForMaskedLM": MASKED_LM,
        **CLASSIFIERS,
        "ForSequenceClassification": {"heads": ("pooler", "sequence"), "classifier_input": "pooler"},
        "ForMultipleChoice": CHOICE,
    },
    entries=revise(
        BERT,
        row("type_vocab_size", "n_token_types", 0, kind=Annotated[int, Field(ge=0, le=2**16)]),
        row("cls_dropout", "classifier_dropout", None, heads=("sequence", "choice"), explicit=False),
        row("pooler_hidden_act", "pooler_activation", "gelu", map=ACTIVATIONS),
        POSITIONS,
        Entry(
            {"tie_word_embeddings": (bool, True), "legacy": (bool, True)},
            _load_head,
            lambda config: {"tie_word_embeddings": config.tie_lm_head},
        ),
        repeats("embedding_size", "hidden_size"),
        repeats("pooler_hidden_size", "hidden_size"),
        fixed(conv_kernel_size=0, pooler_dropout=0.0),
        without="classifier_dropout position_embedding_type",
        **resized(vocab=128100, width=1536, layers=24, heads=24, inner=6144),
        layer_norm_eps=1e-7,
    ),
    constants=TEXT_ENCODER,
    rules=replace(
        RULES,
        prefix="deberta",
        names=RULES.names
        | {"encoder.offsets": ".encoder.rel_embeddings", "encoder.offsets.norm": ".encoder.LayerNorm"}
        | {"heads.pooler.dense": "pooler.dense"}
        | in_layer(".encoder.layer.{i}.", LAYER),
        more=_more,
        unused=".embeddings.position_embeddings mask_predictions.{layer:dense|LayerNorm|classifier}",
    ),
    ignored="conv_act conv_groups",
)
