"""OPT (Zhang et al. 2022) and Galactica (Taylor et al. 2022): decoders with learned positions, which begin in row 2.

The 350m is post-norm, and has narrower embeddings: tokens are projected, and states are projected back for the heads.
"""

from __future__ import annotations

from typing import Any

from trifold.hub.families.bart import LAYER
from trifold.hub.families.gpt import COMMON, DECODER, HEADS, classes
from trifold.hub.family import Family, TensorRules, in_layer
from trifold.hub.rows import ACTIVATIONS, SIZE, Entry, Fields, fixed, ids, revise, row, rows, same, sizes
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig


def _load_layers(file: Any, fields: Fields) -> Fields:
    pre, width = file.do_layer_norm_before, file.word_embed_proj_dim or fields["d_model"]
    projected = width != fields["d_model"]
    return {
        "norm_placement": "pre" if pre else "post",
        "decoder_final_norm": False if pre and file.remove_final_layer_norm else None,
        "d_embedding": width if projected else None,
        "token_projection": projected,
    }


def _save_layers(config: ModelConfig) -> Fields:
    pre = config.norm_placement == "pre"
    return {
        "do_layer_norm_before": pre,
        "_remove_final_layer_norm": pre and not config.has_final_norm("decoder"),
        "word_embed_proj_dim": config.embedding_width,
    }


AROUND = {
    "decoder_embeddings.positions": ".decoder.embed_positions",
    "decoder_embeddings.projection": ".decoder.project_in",
    "projection": ".decoder.project_out",
    "decoder.final_norm": ".decoder.final_layer_norm",
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    place = "enter" if config.norm_placement == "pre" else "after"
    layer = {ours.replace("after", place): name for ours, name in LAYER.items() if "cross" not in ours}
    names = {**AROUND, **HEADS, **in_layer(".decoder.layers.{i}.", layer)}
    rules = TensorRules(
        "model", ".decoder.embed_tokens", names, lm_head="lm_head", buffers=".decoder.version"
    )
    return rules(config)


FAMILY = Family(
    model_type="opt",
    stem="OPT",
    classes=classes("ForTokenClassification"),
    entries=(
        *revise(
            sizes(vocab=50272, width=768, inner=3072, layers=12, heads=12, positions=2048, activation="relu"),
            without="intermediate_size hidden_act",
        ),
        row("ffn_dim", "d_ff", 3072),
        row("activation_function", "activation", "relu", map=ACTIVATIONS),
        *rows(dropout=0.1, attention_dropout=0.0),
        row("enable_bias", "attention_bias", True),
        Entry(
            {
                "do_layer_norm_before": (bool, True),
                "_remove_final_layer_norm": (bool, False),
                "word_embed_proj_dim": (SIZE | None, None),
            },
            _load_layers,
            _save_layers,
        ),
        ids(pad=1, bos=2, eos=2),
        *revise(COMMON, without="classifier_dropout"),
        fixed(layer_norm_elementwise_affine=True, layerdrop=0.0),
    ),
    constants=DECODER
    | {"positions": "learned", "position_offset": 2, "norm_epsilon": 1e-5, "embedding_dropout": 0.0}
    | {"feed_forward_bias": same("attention_bias")},
    rules=_rules,
    ignored="activation_dropout init_std",  # `transformers` does not read the first
)
