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
    scaled = (
        fields["tie_lm_head"] if scaled == "" else scaled
    )  # "": the key is missing; null means no
    return float(fields["d_model"] ** -0.5) if scaled and "lm" in fields["heads"] else 1.0


def _first_token(fields: Fields) -> int:
    start: int | None = fields["decoder_start_id"]
    return fields["pad_id"] if start is None else start


def _load_activation(file: Any, fields: Fields) -> Fields:
    name = file.feed_forward_proj
    gated = file.is_gated_act
    # "gated-gelu" is the one name whose activation is not its second half.
    second = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    key = "feed_forward_proj" if file.dense_act_fn is None else "dense_act_fn"
    return {
        "gated": name.startswith("gated-") if gated is None else gated,
        "activation": lookup(key, file.dense_act_fn or second),
    }


def _save_activation(config: ModelConfig) -> Fields:
    act = "gelu_new" if config.activation == "gelu-tanh" else name_of(config.activation)
    return {
        "feed_forward_proj": f"gated-{act.removesuffix('_new')}" if config.gated else act,
        "dense_act_fn": act,
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
    return tied(f"{base}{STACK}.embed_tokens", table) + (
        tied("lm_head", table) if config.tie_lm_head else []
    )


def _rules(config: ModelConfig, encoder: str = "SelfAttention") -> list[AnyRule]:
    """encoder: their name of the encoder's self-attention."""
    projections = PROJECTIONS | ({"in_proj": "wi_1"} if config.gated else {})
    names = {
        "encoder.offsets": f".encoder.block.0.layer.0.{encoder}.relative_attention_bias",
        "decoder.offsets": ".decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{STACK}.final_norm": ".{stack}.final_layer_norm",
        **HEADS,
        "heads.token.out_proj": "classifier",
        "lm_head": "lm_head",
    }
    for ours, name in LAYERS.items():
        theirs = name.replace("SelfAttention", encoder) if ours.startswith("encoder") else name
        names[f"{ours}.enter"] = f"{theirs.rpartition('.')[0]}.layer_norm"
        names |= {f"{ours}.sublayer.{mine}": f"{theirs}.{own}" for mine, own in projections.items()}
    names["encoder.blocks.{i}.self_attention.sublayer.summary_norm"] = (
        f".encoder.block.{{i}}.layer.0.{encoder}.global_input_layer_norm"
    )
    return TensorRules(
        "transformer"
        if LABELED.intersection(config.chosen_heads)
        else "",  # these wrap the whole model
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
    kind = lookup(
        "encoder_attention_type", file.encoder_attention_type, {name: name for name in KINDS}
    )
    block = file.global_block_size if kind == "transient-global" else None
    full = 0 if fields["shape"] == "encoder-decoder" else None  # in the decoder
    return {"sliding_window": file.local_radius + 1, "decoder_window": full, "summary_block": block}


def _save_encoder(config: ModelConfig) -> Fields:
    block = {} if config.summary_block is None else {"global_block_size": config.summary_block}
    radius = (config.sliding_window or 0) - 1  # -1, which cannot be read, without a window
    return {"local_radius": radius, "encoder_attention_type": _kind(config), **block}


def _kind(config: ModelConfig) -> str:
    return "local" if config.summary_block is None else "transient-global"


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
