"""BART's pre-norm relatives, with a norm at the end of each stack.

mBART (Liu et al. 2020) and mBART-50 have BART's positions and norm on the embeddings. Pegasus (Zhang et al. 2020) has
sinusoids, which its files hold, and no such norm. M2M-100 (Fan et al. 2020) and NLLB (Costa-jussà et al. 2022) have
fairseq's sinusoids, counted from the number after the padding id; layers that are dropped in training are not.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from trifold.hub.families import bart
from trifold.hub.families.bart import BART, CLASSES, LAYER
from trifold.hub.family import STACK, Family, in_layer
from trifold.hub.rows import Entry, end, fixed, revise, row, same
from trifold.hub.rules import AnyRule, Computed, Rule, Zeros
from trifold.nn import ModelConfig
from trifold.nn.positions import sinusoids

PRE_LAYER = {ours.replace("after", "enter"): theirs for ours, theirs in LAYER.items()}
NAMES = {f"{STACK}.final_norm": ".{stack}.layer_norm", **in_layer(".{stack}.layers.{i}.", PRE_LAYER)}
RULES = replace(bart.RULES, names=bart.AROUND | NAMES)
PRE = {"normalize_before": True, "add_final_layer_norm": True}
MBART = Family(
    model_type="mbart",
    stem="MBart",
    # Others without decoder tokens begin with the last source token, often a language.
    classes={name: CLASSES[name] for name in ("ForConditionalGeneration", "Model")},
    entries=revise(
        BART.entries,
        fixed(encoder_layerdrop=0.0, decoder_layerdrop=0.0, **PRE),
        row("decoder_start_token_id", "decoder_start_id", None, otherwise=same("eos_id")),
        without="classifier_dropout",
    ),
    constants=BART.constants | {"norm_placement": "pre"},
    rules=RULES,
    ignored=f"{BART.ignored} classifier_dropout",
)


def _pegasus_more(config: ModelConfig, base: str) -> list[AnyRule]:
    positions = Computed(
        f"{base}{STACK}.embed_positions.weight",
        beside=f"{STACK}.final_norm.weight",
        values=lambda: sinusoids(torch.arange(config.max_positions), config.d_model, config.positions),
    )
    return [*bart.more(config, base), positions]


PEGASUS = replace(
    MBART,
    model_type="pegasus",
    stem="Pegasus",
    entries=revise(
        MBART.entries,
        row("pad_token_id", "pad_id", 0),
        end(1),
        row("decoder_start_token_id", "decoder_start_id", 0),
        row("bos_token_id", "bos_id", None, otherwise=same("decoder_start_id")),
        fixed(normalize_embedding=False, static_position_embeddings=True, extra_pos_embeddings=1),
    ),
    constants=bart.CONSTANTS | {"positions": "sinusoidal-halves", "norm_placement": "pre"},
    rules=replace(RULES, names=NAMES, more=_pegasus_more),
)


def _m2m_more(config: ModelConfig, base: str) -> list[AnyRule]:
    return [rule for rule in bart.more(config, base) if not isinstance(rule, Rule | Zeros)]  # no bias here


M2M = replace(
    MBART,
    model_type="m2m_100",
    stem="M2M100",
    entries=revise(
        MBART.entries,
        row("decoder_start_token_id", "decoder_start_id", 2),
        fixed(**PRE, normalize_embedding=False, static_position_embeddings=True),
        Entry({}, save=lambda config: {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}),
        without="lm_head_bias",
        vocab_size=128112,
        attention_dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
    ),
    constants=PEGASUS.constants
    | {"positions": "sinusoidal-tensor2tensor", "position_offset": lambda fields: fields["pad_id"] + 1},
    rules=replace(
        RULES, names=NAMES, more=_m2m_more, buffers=f"{RULES.buffers} .{STACK}.embed_positions.weights"
    ),
    ignored=f"{MBART.ignored} encoder_layerdrop decoder_layerdrop",
)
