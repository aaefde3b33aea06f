"""Encoders with rotary positions: ModernBERT (Warner et al. 2024), whose layers alternate between windows and all keys,
with a base of the rotation for each kind; and EuroBERT (Boizard et al. 2025), a bidirectional LLaMA.
"""

from __future__ import annotations

from dataclasses import replace

from trifold.hub.families import llama
from trifold.hub.families.bert import ENCODER, ENCODER_ONLY
from trifold.hub.family import Family, TensorRules, in_layer
from trifold.hub.rope import KINDS, LayeredRope, layer_types, layered_rope, load_windows
from trifold.hub.rows import (
    ACTIVATIONS,
    SIZE,
    Entry,
    Fields,
    fixed,
    ids,
    resized,
    revise,
    row,
    rows,
    same,
    sizes,
)
from trifold.hub.transforms import interleaved
from trifold.nn import ModelConfig

# --- ModernBERT ----------------------------------------------------------------------------------------


def _save_windows(config: ModelConfig) -> Fields:
    window = config.sliding_window
    return {
        "layer_types": layer_types(config),
        "local_attention": 128 if window is None else 2 * (window - 1),
    }


LAYERED = layered_rope(160_000.0, 10_000.0, "global_rope_theta", "local_rope_theta")
# `rope_scaling` would also scale the layers with a window.
ROPE = replace(
    LAYERED, keys=LAYERED.keys | {"rope_parameters": (LayeredRope | None, None), "rope_scaling": (None, None)}
)
# `local_attention` is the width of a window on both sides of a query, without that of its own key.
WINDOWS = Entry(
    {"layer_types": (KINDS, None), "global_attn_every_n_layers": (SIZE, 3), "local_attention": (SIZE, 128)},
    lambda file, fields: load_windows(
        file, fields, file.local_attention // 2 + 1, lambda n: n % file.global_attn_every_n_layers > 0
    ),
    _save_windows,
)
CLASSIFIER: Fields = {"transform_norm": True}
# A dense layer, activation and norm come before every head.
CLASSES: dict[str, Fields] = {
    "ForMaskedLM": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": CLASSIFIER | {"heads": ("sequence",)},
    "ForTokenClassification": CLASSIFIER | {"heads": ("token",)},
    "ForQuestionAnswering": CLASSIFIER | {"heads": ("span",)},
    "ForMultipleChoice": CLASSIFIER | {"heads": ("choice",)},
}


def _transform(field: str, *heads: str) -> Entry:
    return row("classifier_activation", field, "gelu", map=ACTIVATIONS, heads=heads)


LAYER = {
    "self_attention.enter": "attn_norm",
    "self_attention.sublayer.o_proj": "attn.Wo",
    "feed_forward.enter": "mlp_norm",
    "feed_forward.sublayer.out_proj": "mlp.Wo",
}
HEADS = "heads.{head:sequence|choice|token|span}"
POOLINGS = {"cls": "first", "mean": "mean"}


RULES = TensorRules(
    "model",
    ".embeddings.tok_embeddings",
    {
        "encoder_embeddings.norm": ".embeddings.norm",
        "encoder.final_norm": ".final_norm",
        **in_layer(".layers.{i}.", LAYER),
        "lm_head.{part_of:dense|norm}": "head.{part_of}",
        f"{HEADS}.{{part_of:dense|norm}}": "head.{part_of}",
        f"{HEADS}.out_proj": "classifier",
    },
    qkv=".layers.{i}.attn.Wqkv",
    split=lambda config: interleaved(1, (1, 1, 1)),
    more=llama.gate_and_in("Wi"),
    lm_head="decoder",
)
SIZES = sizes(vocab=50368, width=768, inner=1152, layers=22, heads=12, positions=8192, activation="gelu")
MODERNBERT = Family(
    model_type="modernbert",
    stem="ModernBert",
    classes=CLASSES,
    entries=(
        *revise(SIZES, without="hidden_act"),
        row("hidden_activation", "activation", "gelu", map=ACTIVATIONS),
        *rows(attention_bias=False, norm_bias=False, embedding_dropout=0.0, classifier_dropout=0.0),
        row("norm_eps", "norm_epsilon", 1e-5),
        row("mlp_bias", "feed_forward_bias", False),
        row("mlp_dropout", "activation_dropout", 0.0),
        row("decoder_bias", "lm_head_bias", True, heads=("lm",)),
        row("classifier_bias", "transform_bias", False),
        _transform("lm_head_transform", "lm"),
        _transform("classifier_transform", "sequence", "choice"),
        _transform("token_transform", "token", "span"),
        row("classifier_pooling", "classifier_input", "cls", map=POOLINGS, heads=("sequence", "choice")),
        # It would also apply to the outputs of attention, but not to those of the feed-forward.
        fixed(attention_dropout=0.0),
        WINDOWS,
        ROPE,
        ids(50283, 50281, 50282, padded=True),
        row("tie_word_embeddings", "tie_lm_head", True),
        ENCODER_ONLY,
        fixed(position_embedding_type="absolute"),
    ),
    constants=ENCODER
    | {"positions": "rotary", "embedding_norm": True, "gated": True, "dropout": 0.0}
    | {"norm_placement": "pre", "first_norm": False},
    rules=RULES,
    # Of the kernels, the initial weights, the loss, and the tokenizer; another name of `norm_eps`.
    ignored="""
    cls_token_id deterministic_flash_attn initializer_cutoff_factor layer_norm_eps reference_compile
    repad_logits_with_grad sep_token_id sparse_pred_ignore_index sparse_prediction
    """,
)

# --- EuroBERT ------------------------------------------------------------------------------------------

EURO_POOLINGS = {"late": "mean-logits", "mean": "mean", "bos": "first"}
EUROBERT = Family(
    model_type="eurobert",
    stem="EuroBert",
    classes={
        "ForMaskedLM": {"heads": ("lm",), "lm_head_bias": same("feed_forward_bias")},
        "Model": {"heads": ()},
        "ForSequenceClassification": {"heads": ("sequence",), "classifier_transform": "gelu"},
        "ForTokenClassification": {"heads": ("token",)},
    },
    entries=(
        *revise(
            llama.LLAMA.entries,
            ids(128001, 128000, 128001, padded=True),
            **resized(vocab=128256, width=768, inner=3072, layers=12, heads=12, positions=8192),
            rms_norm_eps=1e-5,
            without="classifier_dropout",
        ),
        row("classifier_pooling", "classifier_input", "late", map=EURO_POOLINGS, heads=("sequence",)),
        # Of the first release, whose code is not read.
        fixed(clf_pooling="late", hidden_dropout=0.0, is_decoder=False),
    ),
    constants=llama.CONSTANTS | {"shape": "encoder"},
    rules=replace(
        llama.RULES,
        names={
            "encoder.final_norm": ".norm",
            **in_layer(".layers.{i}.", llama.LAYER),
            "heads.sequence.dense": "dense",
            "heads.{head:sequence|token}.out_proj": "classifier",
        },
    ),
    ignored="auto_map bos_token eos_token mask_token mask_token_id pad_token",
)
