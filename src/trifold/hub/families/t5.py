"""T5 (Raffel et al. 2020) in all its versions: 1.0, 1.1 (gated), Flan; and mT5, which has other defaults.

RMS norms before each sub-layer, no biases, unscaled scores with an offset for the distance of two tokens.
Version 1.0 computes its logits with the embedding table, divided by √d_model; later ones have an output table of
their own. Where config.json leaves open which of the two a file has, its tensors decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trifold.hub.families.bart import head_dropout
from trifold.hub.family import LABELED, Family, modules
from trifold.hub.rows import (
    ACTIVATIONS,
    ENDS,
    Fields,
    Group,
    Row,
    first_end,
    fixed,
    name_of,
    revise,
    same,
    translate,
)
from trifold.hub.rules import AnyRule, Copy, Ignored, Renamed, Rule
from trifold.nn import ModelConfig

LONGEST = 2**15  # tokens; positions do not end, so this only limits generation
ENCODER: Fields = {"shape": "encoder", "n_decoder_layers": lambda fields: None}
CLASSES: dict[str, Fields] = {
    "ForConditionalGeneration": {"heads": ("lm",)},
    "Model": {"heads": ()},
    "ForSequenceClassification": {
        "heads": ("sequence",),
        "classifier_input": "eos",
        "classifier_transform": "tanh",
    },
    "ForQuestionAnswering": {"heads": ("span",), "classifier_dropout": 0.0},
    "EncoderModel": ENCODER | {"heads": ()},
    "ForTokenClassification": ENCODER | {"heads": ("token",)},
}


def _load(file: Any, fields: Fields) -> Fields:
    writes, gated = "lm" in fields["heads"], file.is_gated_act
    scaled = file.tie_word_embeddings if file.scale_decoder_outputs is None else file.scale_decoder_outputs
    return {
        "tie_lm_head": file.tie_word_embeddings or not writes,
        "logits_scale": float(file.d_model**-0.5) if scaled and writes else 1.0,
        "gated": file.feed_forward_proj.startswith("gated-") if gated is None else gated,
        "activation": _activation(file),
    }


def _activation(file: Any) -> Any:
    if file.dense_act_fn is not None:
        return translate("dense_act_fn", file.dense_act_fn, ACTIVATIONS)
    # "gated-gelu" is the one name whose activation is not its second half.
    named = (
        "gelu_new"
        if file.feed_forward_proj == "gated-gelu"
        else file.feed_forward_proj.removeprefix("gated-")
    )
    return translate("feed_forward_proj", named, ACTIVATIONS)


def _save(config: ModelConfig) -> Fields:
    act = "gelu_new" if config.activation == "gelu-tanh" else name_of(config.activation, ACTIVATIONS)
    return {
        "feed_forward_proj": f"gated-{act.removesuffix('_new')}" if config.gated else act,
        "dense_act_fn": act,
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tie_lm_head,
        "scale_decoder_outputs": config.logits_scale != 1.0,
        "is_encoder_decoder": config.shape == "encoder-decoder",
    }


VERSIONS = Group(
    {
        "feed_forward_proj": (str, "relu"),
        "dense_act_fn": (str | None, None),  # this and the next follow from feed_forward_proj, or override it
        "is_gated_act": (bool | None, None),
        "tie_word_embeddings": (bool, True),
        "scale_decoder_outputs": (bool | None, None),
        "is_encoder_decoder": (bool, True),  # the class decides
    },
    _load,
    _save,
)


def _begin(value: int | None, fields: Fields) -> int:
    start = fields["decoder_start_id"] if value is None else value
    return int(fields["pad_id"] if start is None else start)


def _settle(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelConfig:
    """Newer files always claim that the output table is the embeddings, and contain it where it differs."""
    head, table = "lm_head.weight", "shared.weight"
    if not config.tie_lm_head or head not in weights or table not in weights:
        return config
    return config.model_copy(update={"tie_lm_head": torch.equal(weights[head], weights[table])})


# Their layers of a block, in this order.
LAYERS = {
    "encoder": {"self_attention": "SelfAttention", "feed_forward": "DenseReluDense"},
    "decoder": {
        "self_attention": "SelfAttention",
        "cross_attention": "EncDecAttention",
        "feed_forward": "DenseReluDense",
    },
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = "transformer." if LABELED.intersection(config.chosen_heads) else ""  # these wrap the whole model
    stack, shared = "{stack:encoder|decoder}", f"{base}shared.weight"
    offsets = "SelfAttention.relative_attention_bias"
    table: list[AnyRule] = [
        Rule("encoder_embeddings.tokens.weight", shared),
        Copy(f"{base}{stack}.embed_tokens.weight", of=shared),
        Renamed(f"{base}{stack}.embed_tokens.weight", shared),
        *modules({f"{stack}.offsets": f"{base}{{stack}}.block.0.layer.0.{offsets}"}),
        *modules({f"{stack}.final_norm": f"{base}{{stack}}.final_layer_norm"}),
        Ignored(f"{base}decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        *modules({"heads.sequence.{layer:dense|out_proj}": "classification_head.{layer}"}),
        *modules({"heads.token.out_proj": "classifier", "heads.span.out_proj": "qa_outputs"}),
    ]
    if config.tie_lm_head:
        table += [Copy("lm_head.weight", of=shared), Renamed("lm_head.weight", shared)]
    else:
        table.append(Rule("lm_head.weight", "lm_head.weight"))
    projections = {
        "{p:q|k|v|o}_proj": "{p}",
        "gate_proj": "wi_0",
        "in_proj": "wi_1" if config.gated else "wi",
        "out_proj": "wo",
    }
    for side, layers in LAYERS.items():
        for number, (part, name) in enumerate(layers.items()):
            ours, theirs = f"{side}.blocks.{{i}}.{part}.", f"{base}{side}.block.{{i}}.layer.{number}."
            table += modules({"enter": "layer_norm"}, ours, theirs)
            table += modules(projections, f"{ours}sublayer.", f"{theirs}{name}.")
    return table


FAMILY = Family(
    model_type="t5",
    stem="T5",
    classes=CLASSES,
    entries=(
        Row("vocab_size", "vocab_size", 32128),
        Row("d_model", "d_model", 512),
        Row("d_kv", "d_head", 64),
        Row("d_ff", "d_ff", 2048),
        Row("num_layers", "n_layers", 6),
        Row("num_heads", "n_heads", 8),
        Row("relative_attention_num_buckets", "relative_buckets", 32),
        Row("relative_attention_max_distance", "relative_distance", 128),
        Row("dropout_rate", "dropout", 0.1),
        Row("layer_norm_epsilon", "norm_epsilon", 1e-6),
        Row("pad_token_id", "pad_id", 0),
        Row("eos_token_id", "eos_id", 1, type=ENDS, load=first_end),
        Row("decoder_start_token_id", "decoder_start_id", None),
        Row("bos_token_id", "bos_id", None, load=_begin),
        Row("num_decoder_layers", "n_decoder_layers", None),
        head_dropout("sequence", "token"),
        VERSIONS,
        fixed(is_decoder=False),
        Row("max_positions", "max_positions", LONGEST),  # ours; files of others do not have it
    ),
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
    settle=_settle,
)
MT5 = replace(
    FAMILY,
    model_type="mt5",
    stem="MT5",
    entries=revise(
        FAMILY.entries,
        replace(VERSIONS, keys=VERSIONS.keys | {"feed_forward_proj": (str, "gated-gelu")}),
        vocab_size=250112,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
    ),
    constants=FAMILY.constants | {"logits_scale": lambda fields: 1.0},  # never scaled
)
