"""Encoders that are related to BERT, RoBERTa or LLaMA.

ELECTRA (Clark et al. 2020) is BERT with narrow embeddings. The discriminator recognizes replaced
tokens; the generator is a masked language model. MPNet (Song et al. 2020) is RoBERTa without
segments, whose scores also have a learned bias of the distance, as in T5. It was pretrained on
masked and permuted tokens, and is the model of many sentence embeddings.

DeBERTa v2 and v3 (He et al. 2021, 2023) are BERT with disentangled content and positions in the
scores. Version 3 shares the projections of both, and was pretrained as the discriminator of
ELECTRA. Without `relative_attention` there is no position in the scores. The larger v2 models have
a convolution beside the first layer.

ModernBERT (Warner et al. 2024) has rotary positions; its layers alternate between windows and all
keys, with a base of the rotation for each kind. EuroBERT (Boizard et al. 2025) is a bidirectional
LLaMA.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.families import bert, llama
from trifold.hub.families.bert import CLASSIFIERS, MASKED_LM, RULES
from trifold.hub.family import TensorRules
from trifold.hub.rope import KINDS, layer_types, layered_rope, load_windows
from trifold.hub.rows import (
    SIZE,
    Entry,
    Fields,
    fixed,
    ids,
    nested,
    repeats,
    resized,
    row,
    rows,
    up_to,
)
from trifold.hub.rules import AnyRule, Ignored, Renamed
from trifold.nn import ModelConfig

# --- ELECTRA --------------------------------------------------------------------------------------


def _load_embedding_width(file: Any, fields: Fields) -> Fields:
    """Embeddings as wide as the model have no projection."""
    if file.embedding_size == fields["d_model"]:
        return {"d_embedding": None}
    return {"d_embedding": file.embedding_size}


WIDTH = Entry(
    {"embedding_size": (up_to(2**20), 128)},
    _load_embedding_width,
    lambda config: {"embedding_size": config.embedding_width},
)
ELECTRA_CLASSES = ("sequence", "token", "span")
ELECTRA = bert.FAMILY.related(
    "electra",
    WIDTH,
    row("classifier_dropout", "classifier_dropout", None, heads=ELECTRA_CLASSES, explicit=False),
    row("summary_last_dropout", "classifier_dropout", 0.1, heads=("choice",)),
    fixed(summary_type="first", summary_use_proj=True, summary_activation="gelu"),
    classes={
        "ForPreTraining": {"heads": ("replaced",)},
        "Model": {"heads": ()},
        # These heads have this activation in any case; that of "replaced" is the model's.
        "ForMaskedLM": MASKED_LM | {"lm_head_transform": "gelu"},
        **CLASSIFIERS,
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "gelu"},
        "ForMultipleChoice": {"heads": ("choice",), "classifier_transform": "gelu"},
    },
    rules=bert.ROBERTA_RULES.related(
        {
            "encoder_embeddings.projection": ".embeddings_project",
            "lm_head.dense": "generator_predictions.dense",
            "lm_head.norm": "generator_predictions.LayerNorm",
            "heads.replaced.dense": "discriminator_predictions.dense",
            "heads.replaced.out_proj": "discriminator_predictions.dense_prediction",
            "heads.choice.dense": "sequence_summary.summary",
        },
        prefix="electra",
        lm_head="generator_lm_head",
        lm_bias="",
        unused="""
        discriminator_predictions.dense discriminator_predictions.dense_prediction generator_lm_head
        generator_predictions.dense generator_predictions.LayerNorm
        """,
    ),
    ignored="",
    **resized(width=256, heads=4, inner=1024),
)

# --- MPNet ----------------------------------------------------------------------------------------

MPNET = bert.ROBERTA.related(
    "mpnet",
    ids(1, 0, 2, padded=True),
    fixed(pad_token_id=1),  # positions begin after 1 in any case
    # The reference has tables of other sizes, but reads 32 rows.
    fixed(relative_attention_num_buckets=32),
    stem="MPNet",
    constants={"positions": "relative", "learned_positions": True},
    without="type_vocab_size classifier_dropout",
    vocab_size=30527,
    rules=bert.ROBERTA_RULES.related(
        {
            "encoder.offsets": ".encoder.relative_attention_bias",
            "self_attention.sublayer.{p:q|k|v|o}_proj": "attention.attn.{p}",
            "self_attention.after": "attention.LayerNorm",
        },
        without="self_attention",
        prefix="mpnet",
    ),
)

# --- DeBERTa --------------------------------------------------------------------------------------

SCORES = {"both": ["p2c", "c2p"], "content-to-position": ["c2p"], "position-to-content": ["p2c"]}


def _load_positions(file: Any, fields: Fields) -> Fields:
    """Our fields for the keys of positions, in the scores or not."""
    norm = file.norm_rel_ebd.lower()
    kinds = _split_kinds(file.pos_att_type)
    if norm not in ("none", "layer_norm"):
        raise SettingsError(
            f"norm_rel_ebd: {file.norm_rel_ebd!r} is not known; known: none, layer_norm"
        )
    if file.relative_attention:
        return _load_disentangled(file, fields, kinds) | {"relative_norm": norm == "layer_norm"}
    if kinds or norm != "none":
        key = "pos_att_type" if kinds else "norm_rel_ebd"
        raise SettingsError(f"{key}: {getattr(file, key)!r} needs relative_attention: true")
    return {"positions": "learned" if file.position_biased_input else "none"}


def _split_kinds(given: str | list[str] | None) -> list[str]:
    """The kinds of scores in a list, or in a text that separates them by |."""
    if not given:
        return []
    if isinstance(given, str):
        return [kind.strip() for kind in given.lower().split("|")]
    return given


def _load_disentangled(file: Any, fields: Fields, kinds: list[str]) -> Fields:
    """Our fields for positions in the scores, whose distances are in buckets that widen, or each
    for itself.
    """
    scores = [ours for ours, theirs in SCORES.items() if sorted(theirs) == sorted(kinds)]
    if not scores:
        raise SettingsError(
            f"pos_att_type: {file.pos_att_type!r} is not known; known: p2c|c2p, c2p, p2c"
        )
    farthest = file.max_relative_positions
    if farthest <= 0:
        farthest = fields["max_positions"]
    buckets = file.position_buckets
    widening = buckets > 0
    least = buckets // 2 + 2 if widening else 2
    if buckets == 1 or farthest < least:
        raise SettingsError(
            f"position_buckets: {buckets} with max_relative_positions: {farthest} is not "
            f"supported; choose other buckets than 1, and at least {least} positions"
        )
    loaded: Fields = {
        "positions": "disentangled",
        "learned_positions": file.position_biased_input,
        "relative_scores": scores[0],
        "relative_shared": file.share_att_key,
    }
    if widening:
        return loaded | {"relative_buckets": 2 * buckets, "relative_distance": farthest}
    return loaded | {"relative_buckets": 2 * farthest, "relative_log": False}


def _save_positions(config: ModelConfig) -> Fields:
    """The inverse of `_load_positions`."""
    if config.positions != "disentangled":
        return {"relative_attention": False, "position_biased_input": config.positions == "learned"}
    keys: Fields = {
        "relative_attention": True,
        "position_biased_input": config.learned_positions,
        "pos_att_type": SCORES[config.relative_scores],
        "share_att_key": config.relative_shared,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
    }
    span = config.relative_buckets // 2
    if config.relative_log:
        distances = {
            "position_buckets": span,
            "max_relative_positions": config.relative_distance,
        }
    else:
        distances = {"position_buckets": -1, "max_relative_positions": span}
    return keys | distances


DEBERTA_ATTENTION = {
    **{
        f"self_attention.sublayer.{n[0]}_proj": f"attention.self.{n}_proj"
        for n in ("query", "key", "value")
    },
    "self_attention.sublayer.relative.k_proj": "attention.self.pos_key_proj",
    "self_attention.sublayer.relative.q_proj": "attention.self.pos_query_proj",
}
# Pretrained models have heads with these names.
OLD_NAMES = {
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
    "lm_predictions.lm_head.{layer:dense|LayerNorm}.{part}": (
        "cls.predictions.transform.{layer}.{part}"
    ),
}


def _old_names(config: ModelConfig, base: str) -> list[AnyRule]:
    if "lm" in config.chosen_heads:
        return [Renamed(old, new) for old, new in OLD_NAMES.items()]
    return [Ignored(name) for name in OLD_NAMES]


def _load_legacy(file: Any, fields: Fields) -> Fields:
    """The key changes only names; without it, the head uses the table of embeddings in any case."""
    if file.legacy:
        return {}
    return {"tie_lm_head": True}


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
CONVOLUTION = {
    "kernel": ("conv_kernel_size", 0),
    "groups": ("conv_groups", 1),
    "activation": ("conv_act", "tanh"),
}
DEBERTA = bert.FAMILY.related(
    "deberta-v2",
    row("type_vocab_size", "n_token_types", 0, kind=Annotated[int, Field(ge=0, le=2**16)]),
    row("cls_dropout", "classifier_dropout", None, heads=("sequence", "choice"), explicit=False),
    row("pooler_hidden_act", "pooler_activation", "gelu"),
    POSITIONS,
    nested("convolution", "conv_kernel_size", **CONVOLUTION),
    Entry({"legacy": (bool, True)}, _load_legacy),
    repeats("embedding_size", "hidden_size"),
    repeats("pooler_hidden_size", "hidden_size"),
    repeats("attention_head_size", "hidden_size", times="num_attention_heads"),
    fixed(pooler_dropout=0.0),
    classes=bert.classes(ForSequenceClassification=bert.CLASSES["ForSequenceClassification"]),
    rules=RULES.related(
        {"encoder.offsets": ".encoder.rel_embeddings", "encoder.offsets.norm": ".encoder.LayerNorm"}
        | {"encoder.blocks.0.convolution": ".encoder.conv.conv"}
        | {"encoder.blocks.0.norm": ".encoder.conv.LayerNorm", "heads.pooler.dense": "pooler.dense"}
        | DEBERTA_ATTENTION,
        prefix="deberta",
        more=_old_names,
        unused=".embeddings.position_embeddings "
        "mask_predictions.{layer:dense|LayerNorm|classifier}",
    ),
    ignored="",
    without="classifier_dropout position_embedding_type",
    **resized(vocab=128100, width=1536, layers=24, heads=24, inner=6144, layer_norm_eps=1e-7),
)

# --- ModernBERT -----------------------------------------------------------------------------------


def _save_windows(config: ModelConfig) -> Fields:
    width = 128
    if config.sliding_window is not None:
        width = max(1, 2 * (config.sliding_window - 1))
    return {"layer_types": layer_types(config), "local_attention": width}


MODERN_LAYERED = layered_rope(160_000.0, 10_000.0, "global_rope_theta", "local_rope_theta")
# `rope_scaling` would also scale the layers with a window.
MODERN_ROPE = replace(MODERN_LAYERED, keys=MODERN_LAYERED.keys | {"rope_scaling": (None, None)})
# `local_attention` is the width of a window on both sides of a query, without that of its own key.
MODERN_WINDOWS = Entry(
    {
        "layer_types": (KINDS, None),
        "global_attn_every_n_layers": (SIZE, 3),
        "local_attention": (SIZE, 128),
    },
    lambda file, fields: load_windows(
        file,
        fields,
        file.local_attention // 2 + 1,
        lambda n: n % file.global_attn_every_n_layers > 0,
    ),
    _save_windows,
)
# A dense layer, activation and norm come before every head.
MODERN_CLASSES: dict[str, Fields] = {
    "ForMaskedLM": {"heads": ("lm",)},
    "Model": {"heads": ()},
    **{name: fields | {"transform_norm": True} for name, fields in CLASSIFIERS.items()},
    "ForMultipleChoice": {"heads": ("choice",), "transform_norm": True},
}


MODERN_HEADS = "heads.{head:sequence|choice|token|span}"
POOLINGS = {"cls": "first", "mean": "mean"}


MODERN_RULES = TensorRules(
    "model",
    ".embeddings.tok_embeddings",
    {
        "encoder_embeddings.norm": ".embeddings.norm",
        "encoder.final_norm": ".final_norm",
        "self_attention.enter": "attn_norm",
        "self_attention.sublayer.o_proj": "attn.Wo",
        "feed_forward.enter": "mlp_norm",
        "feed_forward.sublayer.out_proj": "mlp.Wo",
        "lm_head.{part_of:dense|norm}": "head.{part_of}",
        f"{MODERN_HEADS}.{{part_of:dense|norm}}": "head.{part_of}",
        f"{MODERN_HEADS}.out_proj": "classifier",
    },
    layer=".layers.{i}.",
    qkv=".layers.{i}.attn.Wqkv",
    more=llama.gate_and_in("Wi"),
    lm_head="decoder",
)
MODERNBERT = bert.FAMILY.related(
    "modernbert",
    row("hidden_activation", "activation", "gelu"),
    *rows(attention_bias=False, norm_bias=False, embedding_dropout=0.0, classifier_dropout=0.0),
    *rows(norm_epsilon=("norm_eps", 1e-5), transform_bias=("classifier_bias", False)),
    *rows(feed_forward_bias=("mlp_bias", False), activation_dropout=("mlp_dropout", 0.0)),
    row("decoder_bias", "lm_head_bias", True, heads=("lm",)),
    row("classifier_activation", "lm_head_transform", "gelu", heads=("lm",)),
    row("classifier_activation", "classifier_transform", "gelu", heads=("sequence", "choice")),
    row("classifier_activation", "token_transform", "gelu", heads=("token", "span")),
    row(
        "classifier_pooling", "classifier_input", "cls", map=POOLINGS, heads=("sequence", "choice")
    ),
    # It would also apply to the outputs of attention, but not to those of the feed-forward.
    fixed(attention_dropout=0.0),
    MODERN_WINDOWS,
    MODERN_ROPE,
    ids(50283, 50281, 50282, padded=True),
    stem="ModernBert",
    classes=MODERN_CLASSES,
    constants={"positions": "rotary", "gated": True, "dropout": 0.0}
    | {"norm_placement": "pre", "first_norm": False},
    rules=MODERN_RULES,
    # Of the kernels, the initial weights, the loss, and the tokenizer; another name of `norm_eps`.
    ignored="""
    cls_token_id deterministic_flash_attn initializer_cutoff_factor layer_norm_eps reference_compile
    repad_logits_with_grad sep_token_id sparse_pred_ignore_index sparse_prediction
    """,
    without="hidden_act hidden_dropout_prob attention_probs_dropout_prob layer_norm_eps "
    "type_vocab_size",
    **resized(vocab=50368, inner=1152, layers=22, positions=8192),
)

# --- EuroBERT -------------------------------------------------------------------------------------

EURO_POOLINGS = {"late": "mean-logits", "mean": "mean", "bos": "first"}
EUROBERT = llama.LLAMA.related(
    "eurobert",
    ids(128001, 128000, 128001, padded=True),
    row("classifier_pooling", "classifier_input", "late", map=EURO_POOLINGS, heads=("sequence",)),
    # Of the first release, whose code is not read.
    fixed(clf_pooling="late", hidden_dropout=0.0, is_decoder=False),
    stem="EuroBert",
    classes={
        "ForMaskedLM": {
            "heads": ("lm",),
            "lm_head_bias": lambda fields: fields["feed_forward_bias"],
        },
        "Model": {"heads": ()},
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "gelu"},
        "ForTokenClassification": {"heads": ("token",)},
    },
    constants={"shape": "encoder"},
    rules=llama.RULES.related(
        {"heads.sequence.dense": "dense", "heads.{head:sequence|token}.out_proj": "classifier"},
        without="heads",
    ),
    ignored="auto_map bos_token eos_token mask_token mask_token_id pad_token",
    without="classifier_dropout",
    **resized(
        vocab=128256, width=768, inner=3072, layers=12, heads=12, positions=8192, rms_norm_eps=1e-5
    ),
)
