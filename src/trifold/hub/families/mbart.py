"""BART's relatives, most of them pre-norm with a norm at the end of each stack.

mBART (Liu et al. 2020) and mBART-50 have BART's positions and norm on the embeddings. Pegasus
(Zhang et al. 2020) has sinusoids, which its files hold, and no such norm. M2M-100 (Fan et al. 2020)
and NLLB (Costa-jussà et al. 2022) have fairseq's sinusoids, counted from the number after the
padding id; layers that are dropped in training are not.

OPT (Zhang et al. 2022) and Galactica (Taylor et al. 2022) are decoders with BART's positions. The
350m is post-norm and has narrower embeddings: tokens are projected, and states are projected back
for the heads.
"""

from typing import Any

import torch

from trifold.hub.families import bart, gpt
from trifold.hub.families.bart import BART, CLASSES, LAYER
from trifold.hub.families.gpt import HEADS, classes
from trifold.hub.family import STACK, TensorRules
from trifold.hub.rows import SIZE, Entry, Fields, fixed, ids, resized, row, rows, same
from trifold.hub.rules import AnyRule, Computed, ParameterRule, Zeros
from trifold.nn import ModelConfig
from trifold.nn.positions import sinusoids

RULES = bart.RULES.related({f"{STACK}.final_norm": ".{stack}.layer_norm"})
PRE = {"normalize_before": True, "add_final_layer_norm": True}
SEQ2SEQ = {name: CLASSES[name] for name in ("ForConditionalGeneration", "Model")}
MBART = BART.related(
    "mbart",
    fixed(encoder_layerdrop=0.0, decoder_layerdrop=0.0, **PRE),
    row("decoder_start_token_id", "decoder_start_id", None),  # null: bos_token_id
    stem="MBart",
    # Without decoder tokens, the decoder begins with the last source token, often a language.
    classes={name: CLASSES[name] | {"starts_with_last": True} for name in CLASSES} | SEQ2SEQ,
    constants={"norm_placement": "pre"},
    rules=RULES,
)


def _pegasus_more(config: ModelConfig, base: str) -> list[AnyRule]:
    positions = Computed(
        f"{base}{STACK}.embed_positions.weight",
        beside=f"{STACK}.final_norm.weight",
        values=lambda: sinusoids(
            torch.arange(config.max_positions), config.d_model, config.positions
        ),
    )
    return [*bart.more(config, base), positions]


PEGASUS = MBART.related(
    "pegasus",
    row("decoder_start_token_id", "decoder_start_id", 0),
    row("bos_token_id", "bos_id", None, otherwise=same("decoder_start_id")),
    fixed(normalize_embedding=False, static_position_embeddings=True),
    constants={"positions": "sinusoidal-halves", "position_offset": 0, "embedding_norm": False},
    classes=SEQ2SEQ,
    rules=RULES.related(more=_pegasus_more),
    # 0 or 1 in published files; `transformers` reads neither key.
    ignored=f"{MBART.ignored} classifier_dropout do_blenderbot_90_layernorm extra_pos_embeddings",
    without="classifier_dropout",
    pad_token_id=0,
    eos_token_id=1,
)


def _m2m_more(config: ModelConfig, base: str) -> list[AnyRule]:
    """The rules of BART without those of the bias of logits."""
    return [rule for rule in bart.more(config, base) if not isinstance(rule, ParameterRule | Zeros)]


M2M = MBART.related(
    "m2m_100",
    row("decoder_start_token_id", "decoder_start_id", 2),
    fixed(**PRE, normalize_embedding=False, static_position_embeddings=True),
    Entry({}, save=lambda config: {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}),
    stem="M2M100",
    classes=SEQ2SEQ,
    constants=PEGASUS.constants
    | {
        "positions": "sinusoidal-tensor2tensor",
        "position_offset": lambda fields: fields["pad_id"] + 1,
    },
    rules=RULES.related(
        more=_m2m_more, buffers=f"{RULES.buffers} .{STACK}.embed_positions.weights"
    ),
    ignored=f"{MBART.ignored} classifier_dropout encoder_layerdrop decoder_layerdrop",
    without="lm_head_bias classifier_dropout",
    **resized(
        vocab=128112, attention_dropout=0.1, activation_function="relu", scale_embedding=True
    ),
)

# --- OPT ------------------------------------------------------------------------------------------


def _load_layers(file: Any, fields: Fields) -> Fields:
    width = file.word_embed_proj_dim or fields["d_model"]
    pre = fields["norm_placement"] == "pre"
    without_norm = pre and file.remove_final_layer_norm
    projected = width != fields["d_model"]
    return {
        "decoder_final_norm": False if without_norm else None,
        "d_embedding": width if projected else None,
        "token_projection": projected,
    }


def _save_layers(config: ModelConfig) -> Fields:
    removed = config.norm_placement == "pre" and not config.has_final_norm("decoder")
    return {"_remove_final_layer_norm": removed, "word_embed_proj_dim": config.embedding_width}


OPT = gpt.BASE.related(
    "opt",
    *rows(vocab_size=50272, d_model=("hidden_size", 768), n_layers=("num_hidden_layers", 12)),
    *rows(n_heads=("num_attention_heads", 12), max_positions=("max_position_embeddings", 2048)),
    *rows(d_ff=("ffn_dim", 3072), activation=("activation_function", "relu")),
    *rows(dropout=0.1, attention_dropout=0.0, attention_bias=("enable_bias", True)),
    row("do_layer_norm_before", "norm_placement", True, map={True: "pre", False: "post"}),
    Entry(
        {"_remove_final_layer_norm": (bool, False), "word_embed_proj_dim": (SIZE | None, None)},
        _load_layers,
        _save_layers,
    ),
    ids(pad=1, bos=2, eos=2),
    fixed(layer_norm_elementwise_affine=True),
    stem="OPT",
    classes=classes("ForTokenClassification"),
    constants={"positions": "learned", "position_offset": 2, "norm_epsilon": 1e-5}
    | {"embedding_dropout": 0.0, "feed_forward_bias": same("attention_bias")},
    rules=TensorRules(
        "model",
        ".decoder.embed_tokens",
        {
            "decoder_embeddings.positions": ".decoder.embed_positions",
            "decoder_embeddings.projection": ".decoder.project_in",
            "projection": ".decoder.project_out",
            "decoder.final_norm": ".decoder.final_layer_norm",
            **HEADS,
            **LAYER,
        },
        layer=".decoder.layers.{i}.",
        lm_head="lm_head",
        buffers=".decoder.version",
    ),
    # `transformers` does not read the first; the last one acts in training only.
    ignored="activation_dropout init_std layerdrop",
    without="classifier_dropout",
)
