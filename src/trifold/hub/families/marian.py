"""The Transformer of 2017 as the reference library knows it: Marian.

Marian writes all sines of the positions before all cosines where the paper interleaves them. The width of the model
has no order of its own, so one permutation of it, applied to every tensor that has that axis, turns one into the
other and leaves the logits as they were. Marian always has biases in attention and on the logits; where we have none
they are zeros. Keys of ours in config.json, which the reference ignores, record the original form.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from trifold.hub.families.bart import LAYER, SIDES, logits_bias
from trifold.hub.family import PART, Family, modules
from trifold.hub.rows import ENDS, Fields, Group, Row, always, first_end, fixed
from trifold.hub.rules import SAME, AnyRule, Copy, Ignored, Rule, Transform, Zeros, permuted
from trifold.nn import ModelConfig

LAYOUTS = {"halves": "sinusoidal-halves", "interleaved": "sinusoidal"}
SIZE = Annotated[int, Field(gt=0)]


def _load_vocabularies(file: Any, fields: Fields) -> Fields:
    own = None if file.share_encoder_decoder_embeddings else file.decoder_vocab_size or file.vocab_size
    return {"vocab_size": file.vocab_size, "target_vocab_size": own}


def _save_vocabularies(config: ModelConfig) -> Fields:
    return {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.output_vocab_size,
        "share_encoder_decoder_embeddings": config.target_vocab_size is None,
    }


VOCABULARIES = Group(
    {
        "vocab_size": (SIZE, 58101),
        "decoder_vocab_size": (SIZE | None, None),
        "share_encoder_decoder_embeddings": (bool, True),
    },
    _load_vocabularies,
    _save_vocabularies,
)


def _begin(value: int | None, fields: Fields) -> int:
    return int(fields["decoder_start_id"]) if value is None else value


STACK = "{stack:encoder|decoder}.blocks.{i}."
THEIR_STACK = "model.{stack}.layers.{i}."
# Modules that read the width of the model; all others write it.
READERS = {ours: theirs for ours, theirs in LAYER.items() if "in_proj" in ours or "{p" in ours}
WRITERS = {ours: theirs for ours, theirs in LAYER.items() if ours not in READERS}


def _rules(config: ModelConfig) -> list[AnyRule]:
    rows, columns = _width(config, axis=0), _width(config, axis=1)
    table: list[AnyRule] = [
        *modules(READERS, STACK, THEIR_STACK, columns),
        *(Rule(f"{STACK}{a}.{PART}", f"{THEIR_STACK}{b}.{{part}}", rows) for a, b in WRITERS.items()),
        Ignored("model.{stack:encoder|decoder}.embed_positions.weight"),
    ]
    if not config.attention_bias:
        remedy = "write attention_bias: true in config.json"
        table += [
            Zeros(f"{THEIR_STACK}{theirs}.bias", beside=f"{STACK}{ours}.weight", remedy=remedy)
            for ours, theirs in LAYER.items()
            if "attention.sublayer" in ours
        ]
    return table + _vocabulary(config, columns)


def _width(config: ModelConfig, axis: int) -> Transform:
    if config.positions == "sinusoidal-halves":
        return SAME
    return permuted((*range(0, config.d_model, 2), *range(1, config.d_model, 2)), axis)


def _vocabulary(config: ModelConfig, columns: Transform) -> list[AnyRule]:
    if config.target_vocab_size is None:
        shared, target = "model.shared.weight", "encoder_embeddings.tokens.weight"
        return [
            Rule(target, shared, columns),
            Copy("model.{stack:encoder|decoder}.embed_tokens.weight", of=shared),
            Copy("lm_head.weight", of=shared),
            logits_bias(config, target),
        ]
    return [
        Rule("{stack}_embeddings.tokens.weight", "model.{stack}.embed_tokens.weight", columns),
        Copy("lm_head.weight", of="model.decoder.embed_tokens.weight"),
        logits_bias(config, "decoder_embeddings.tokens.weight"),
    ]


FAMILY = Family(
    model_type="marian",
    stem="Marian",
    classes={"MTModel": {"heads": ("lm",)}},
    entries=(
        VOCABULARIES,
        *SIDES,
        Row("pad_token_id", "pad_id", 58100),
        Row("eos_token_id", "eos_id", 0, type=ENDS, load=first_end),
        Row("decoder_start_token_id", "decoder_start_id", 58100),
        Row("bos_token_id", "bos_id", None, load=_begin),
        fixed(activation_dropout=0.0, normalize_embedding=False, static_position_embeddings=True),
        always(activation_dropout=0.0),
        # Ours; files of others have none of these.
        Row("position_layout", "positions", "halves", map=LAYOUTS),
        Row("attention_bias", "attention_bias", True),
        Row("lm_head_bias", "lm_head_bias", True),
    ),
    constants={"norm_epsilon": 1e-5},
    rules=_rules,
    ignored="num_hidden_layers classifier_dropout classif_dropout init_std",
)
