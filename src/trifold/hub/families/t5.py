"""T5 (Raffel et al. 2020) in all its versions: 1.0, 1.1 (gated), Flan; mT5, which has other
defaults; LongT5.

RMS norms before each sub-layer, no biases, unscaled scores with an offset for the distance of two
tokens. Version 1.0 ties the output layer to the embeddings and divides the logits by √d_model;
later versions are untied. Where config.json is ambiguous, the tensors decide.

The encoder of LongT5 (Guo et al. 2022) has a window; with transient global attention it also reads
a summary of each block of tokens.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from trifold.hub.families.bart import CLASSES as BART_CLASSES, DROPOUT, HEADS
from trifold.hub.family import LABELED, MAX_POSITIONS, STACK, Family, TensorRules, tied
from trifold.hub.rows import (
    SIZE,
    Entry,
    Fields,
    end,
    fixed,
    lookup,
    name_of,
    resized,
    row,
    rows,
    same,
)
from trifold.hub.rules import AnyRule, ParameterRule
from trifold.nn import ModelConfig

ENCODER: Fields = {"shape": "encoder", "n_decoder_layers": lambda fields: None}
CLASSES: dict[str, Fields] = {
    **BART_CLASSES,
    "EncoderModel": ENCODER | {"heads": ()},
    "ForTokenClassification": ENCODER | {"heads": ("token",)},
}


def _scale(scaled: bool | str | None, fields: Fields) -> float:
    """The factor of logits. scaled: "" where the key is missing; null means no."""
    if scaled == "":
        scaled = fields["tie_lm_head"]
    if not scaled or "lm" not in fields["heads"]:
        return 1.0
    return float(fields["d_model"] ** -0.5)


def _first_token(fields: Fields) -> int:
    start: int | None = fields["decoder_start_id"]
    return fields["pad_id"] if start is None else start


def _load_activation(file: Any, fields: Fields) -> Fields:
    """`feed_forward_proj` names both; the other keys override it."""
    name = file.feed_forward_proj
    gated = file.is_gated_act
    if gated is None:
        gated = name.startswith("gated-")
    key = "feed_forward_proj" if file.dense_act_fn is None else "dense_act_fn"
    activation = name.removeprefix("gated-")
    if name == "gated-gelu":  # the one name whose activation is not its second half
        activation = "gelu_new"
    return {"gated": gated, "activation": lookup(key, file.dense_act_fn or activation)}


def _save_activation(config: ModelConfig) -> Fields:
    """The inverse of `_load_activation`."""
    activation = "gelu_new" if config.activation == "gelu-tanh" else name_of(config.activation)
    name = activation
    if config.gated:
        name = f"gated-{activation.removesuffix('_new')}"
    return {
        "feed_forward_proj": name,
        "dense_act_fn": activation,
        "is_gated_act": config.gated,
    }


def _infer_tying(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelConfig:
    """Newer files always set tie_word_embeddings, and contain an output table of their own if it is
    not tied.
    """
    head = "lm_head.weight"
    table = "shared.weight"
    untied = head in weights and not config.tie_lm_head
    if untied or table not in weights or "lm" not in config.chosen_heads:
        return config
    tied = head not in weights or torch.equal(weights[head], weights[table])
    return config.model_copy(update={"tie_lm_head": tied})


# Sub-layers of a block are numbered there.
LAYERS = {
    "encoder.blocks.{i}.self_attention": ".encoder.block.{i}.layer.0.SelfAttention",
    "encoder.blocks.{i}.feed_forward": ".encoder.block.{i}.layer.1.DenseReluDense",
    "decoder.blocks.{i}.self_attention": ".decoder.block.{i}.layer.0.SelfAttention",
    "decoder.blocks.{i}.cross_attention": ".decoder.block.{i}.layer.1.EncDecAttention",
    "decoder.blocks.{i}.feed_forward": ".decoder.block.{i}.layer.2.DenseReluDense",
}
PROJECTIONS = {"{p:q|k|v|o}_proj": "{p}", "gate_proj": "wi_0", "in_proj": "wi", "out_proj": "wo"}


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    table = f"{base}shared.weight"
    copies = tied(f"{base}{STACK}.embed_tokens", table)
    if config.tie_lm_head:
        copies += tied("lm_head", table)
    return copies


def _rules(config: ModelConfig, encoder: str = "SelfAttention") -> list[AnyRule]:
    """encoder: their name of the encoder's self-attention."""
    projections = PROJECTIONS.copy()
    if config.gated:
        projections["in_proj"] = "wi_1"
    names = {
        "encoder.offsets": f".encoder.block.0.layer.0.{encoder}.relative_attention_bias",
        "decoder.offsets": ".decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{STACK}.final_norm": ".{stack}.final_layer_norm",
        **HEADS,
        "heads.token.out_proj": "classifier",
        "lm_head": "lm_head",
    }
    for ours, theirs in LAYERS.items():
        if ours.startswith("encoder"):
            theirs = theirs.replace("SelfAttention", encoder)
        names[f"{ours}.enter"] = f"{theirs.rpartition('.')[0]}.layer_norm"
        for our_matrix, their_matrix in projections.items():
            names[f"{ours}.sublayer.{our_matrix}"] = f"{theirs}.{their_matrix}"
    names["encoder.blocks.{i}.self_attention.sublayer.summary_norm"] = (
        f".encoder.block.{{i}}.layer.0.{encoder}.global_input_layer_norm"
    )
    wraps_model = bool(LABELED.intersection(config.chosen_heads))
    return TensorRules(
        "transformer" if wraps_model else "",
        ".shared",
        names,
        more=_more,
        buffers=".decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    )(config)


ENTRIES = (
    *rows(vocab_size=32128, d_model=512, d_ff=2048, max_positions=MAX_POSITIONS),
    *rows(
        d_head=("d_kv", 64),
        n_layers=("num_layers", 6),
        n_decoder_layers=("num_decoder_layers", None),
    ),
    *rows(n_heads=("num_heads", 8), relative_buckets=("relative_attention_num_buckets", 32)),
    *rows(
        relative_distance=("relative_attention_max_distance", 128), dropout=("dropout_rate", 0.1)
    ),
    *rows(norm_epsilon=("layer_norm_epsilon", 1e-6), pad_id=("pad_token_id", 0)),
    end(1),
    row("decoder_start_token_id", "decoder_start_id", None),
    row("bos_token_id", "bos_id", None, otherwise=_first_token),
    DROPOUT,
    Entry(
        {
            "feed_forward_proj": (str, "relu"),
            "dense_act_fn": (str | None, None),  # this and the next follow from it, or override it
            "is_gated_act": (bool | None, None),
        },
        _load_activation,
        _save_activation,
    ),
    row(
        "tie_word_embeddings",
        "tie_lm_head",
        True,
        load=lambda tied, f: tied or "lm" not in f["heads"],
    ),
    row(
        "scale_decoder_outputs",
        "logits_scale",
        "",
        kind=bool | None,
        load=_scale,
        save=lambda s: s != 1.0,
    ),
    # The class decides.
    Entry(
        {"is_encoder_decoder": (bool, True)},
        save=lambda c: {"is_encoder_decoder": c.shape == "encoder-decoder"},
    ),
    fixed(is_decoder=False),
)
FAMILY = Family(
    model_type="t5",
    stem="T5",
    classes=CLASSES,
    entries=ENTRIES,
    constants={
        "positions": "relative",
        "scale_embeddings": False,
        "norm": "rms",
        "norm_placement": "pre",
        "feed_forward_bias": False,
        "attention_scale": 1.0,
        "attention_dropout": same("dropout"),
        "activation_dropout": same("dropout"),
    },
    rules=_rules,
    ignored="initializer_factor n_positions",
    infer=_infer_tying,
)
MT5 = FAMILY.related(
    "mt5",
    stem="MT5",
    constants={"logits_scale": lambda fields: 1.0},  # never scaled
    **resized(vocab=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu"),
)

# --- LongT5 ---------------------------------------------------------------------------------------

KINDS = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


def _load_encoder(file: Any, fields: Fields) -> Fields:
    """The window and the summaries of the encoder; the decoder has no window."""
    kind = lookup(
        "encoder_attention_type", file.encoder_attention_type, {name: name for name in KINDS}
    )
    return {
        "sliding_window": file.local_radius + 1,
        "decoder_window": 0 if fields["shape"] == "encoder-decoder" else None,
        "summary_block": file.global_block_size if kind == "transient-global" else None,
    }


def _save_encoder(config: ModelConfig) -> Fields:
    """The inverse of `_load_encoder`."""
    radius = (config.sliding_window or 0) - 1  # -1, which cannot be read, without a window
    keys: Fields = {"local_radius": radius, "encoder_attention_type": _kind(config)}
    if config.summary_block is not None:
        keys["global_block_size"] = config.summary_block
    return keys


def _kind(config: ModelConfig) -> str:
    if config.summary_block is None:
        return "local"
    return "transient-global"


def _long_rules(config: ModelConfig) -> list[AnyRule]:
    name = KINDS[_kind(config)]
    summaries = f"encoder.block.0.layer.0.{name}.global_relative_attention_bias.weight"
    return [*_rules(config, name), ParameterRule("encoder.offsets.summary_weight", summaries)]


LONGT5 = FAMILY.related(
    "longt5",
    Entry(
        {
            "local_radius": (Annotated[int, Field(ge=0)], 127),
            "global_block_size": (SIZE, 16),
            "encoder_attention_type": (str, "local"),
        },
        _load_encoder,
        _save_encoder,
    ),
    stem="LongT5",
    classes={name: CLASSES[name] for name in ("ForConditionalGeneration", "Model", "EncoderModel")},
    rules=_long_rules,
    without="classifier_dropout",
)
