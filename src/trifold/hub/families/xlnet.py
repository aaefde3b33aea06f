"""XLNet (Yang et al. 2019): an encoder whose scores look at distances and segments, trained on tokens in any order.

Bidirectional (`attn_type: bi`): a recurrent memory of earlier texts is nothing that a single text needs, so the keys
that say how much of it is kept change nothing here. Its matrices have an axis a head; texts may be padded on any side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.encoders import (
    BLOCK,
    IDS,
    LARGEST_VOCABULARY,
    below,
    either_way,
    encoder_says,
    head_to_ours,
    head_to_theirs,
    modules,
    unread,
    word_ids,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    Family,
    activation,
    architecture_of,
    heads_of,
    ids_to_theirs,
    key_of,
    parse_config,
    to_ours,
    to_theirs,
)
from trifold.hub.rules import LEADING_AXIS, TRANSPOSED, AnyRule, Copy, Rule, chain, joined_axes
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

ENDLESS = 2**15  # tokens: waves have no end, so this is only where a text is too long to be meant

CLASSES: Architectures = {
    "XLNetModel": (),
    "XLNetLMHeadModel": ("lm",),
    "XLNetForSequenceClassification": ("sequence",),
    "XLNetForTokenClassification": ("token",),
    "XLNetForQuestionAnsweringSimple": ("span",),
}
# Of the recurrent memory, of causal attention, of a search for answers, of the first training: not for one plain text.
HARMLESS = frozenset(
    "mem_len reuse_len use_mems_eval use_mems_train same_length start_n_top end_n_top perm_size".split()
)

# --- config.json ---------------------------------------------------------------------------------------


class XLNetFile(Settings):
    """Their keys, types and defaults."""

    vocab_size: int = Field(32000, gt=0, le=LARGEST_VOCABULARY)
    d_model: int = Field(1024, gt=0)
    n_layer: int = Field(24, gt=0)
    n_head: int = Field(16, gt=0)
    d_head: int | None = Field(None, gt=0)
    d_inner: int = Field(4096, gt=0)
    ff_activation: str = "gelu"
    dropout: float = Field(0.1, ge=0, lt=1)
    layer_norm_eps: float = Field(1e-12, gt=0)
    clamp_len: int = -1
    summary_type: Literal["last", "first"] = "last"
    summary_use_proj: bool = True
    summary_activation: str | None = "tanh"
    summary_last_dropout: float = Field(0.1, ge=0, lt=1)
    pad_token_id: int | None = Field(5, ge=0)
    bos_token_id: int | None = Field(1, ge=0)
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True

    # What only other models have.
    attn_type: Literal["bi"] = "bi"
    bi_data: Literal[False] = False
    untie_r: Literal[True] = True
    is_decoder: Literal[False] = False
    is_encoder_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False

    # Ours: files of others have it not.
    max_positions: int = Field(ENDLESS, gt=0)


FIXED: dict[str, Any] = {
    "shape": "encoder",
    "positions": "relative-sinusoidal",
    "segment_offsets": True,
    "query_stream": True,
    "scale_embeddings": False,
}
KEYS = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "d_inner": "d_ff",
    "dropout": "dropout",
    "layer_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_lm_head",
    "max_positions": "max_positions",
}
DROPOUTS = ("attention_dropout", "activation_dropout")  # the one probability is everybody's
SAID = frozenset({*KEYS.values(), *IDS, *DROPOUTS, "activation", "relative_clamp"})
OF_SEQUENCE = frozenset({"classifier_input", "classifier_transform", "classifier_dropout"})


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    return {"lm": {"lm_head_bias": True}}


def _fits(config: ModelConfig) -> bool:
    known = {config.activation, config.classifier_transform or "tanh"} <= set(ACTIVATIONS.values())
    evenly = config.d_model % config.n_heads == 0 and {
        config.attention_dropout,
        config.activation_dropout,
    } == {config.dropout}
    said = SAID
    if "sequence" in config.chosen_heads:
        said, known = said | OF_SEQUENCE, known and config.classifier_input in ("last", "first")
    return known and evenly and encoder_says(config, CLASSES, said, _of_head, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    theirs = to_theirs(KEYS, config) | ids_to_theirs(config) | head_to_theirs(config)
    if config.max_positions == ENDLESS:
        del theirs["max_positions"]
    if "sequence" in config.chosen_heads:
        transform, drop = config.classifier_transform, config.classifier_dropout
        theirs |= {
            "summary_type": config.classifier_input,
            "summary_use_proj": transform is not None,
            "summary_activation": key_of(ACTIVATIONS, transform) if transform else "",
            "summary_last_dropout": config.dropout if drop is None else drop,
        }
    return theirs | {
        "d_head": config.head_width,
        "ff_activation": key_of(ACTIVATIONS, config.activation),
        "clamp_len": config.relative_clamp or -1,
        "pad_token_id": config.pad_id,  # the reference gives it no gradient
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file, heads = parse_config(XLNetFile, values, HARMLESS), heads_of(values, CLASSES)
    inner = activation("ff_activation", file.ff_activation)
    config = ModelConfig.parse(
        FIXED
        | to_ours(KEYS, file)
        | word_ids(file.vocab_size, file.pad_token_id, file.bos_token_id, file.eos_token_id)
        | head_to_ours(values, heads)
        | {"activation": inner, "relative_clamp": file.clamp_len if file.clamp_len > 0 else None}
        | dict.fromkeys(DROPOUTS, file.dropout)
        | {"lm_head_bias": "lm" in heads}
        | (_summary(file) if "sequence" in heads else {})
    )
    if file.d_head not in (None, config.head_width):
        raise SettingsError(f"d_head: {file.d_head} is not d_model {file.d_model} / n_head {file.n_head}")
    return config


def _summary(file: XLNetFile) -> dict[str, Any]:
    """The state that stands for the sequence, and what is done with it before it is classified."""
    transform = file.summary_activation or None
    if file.summary_use_proj != (transform is not None):
        raise SettingsError(
            f"summary_activation: {file.summary_activation!r} with summary_use_proj: {file.summary_use_proj}: "
            "a layer and its activation go together"
        )
    return {
        "classifier_input": file.summary_type,
        "classifier_transform": None if transform is None else activation("summary_activation", transform),
        "classifier_dropout": file.summary_last_dropout,
    }


# --- weights -------------------------------------------------------------------------------------------

ATTENTION = f"{BLOCK}self_attention.sublayer"
LAYER = {
    "self_attention.after": "rel_attn.layer_norm",
    "feed_forward.sublayer.in_proj": "ff.layer_1",
    "feed_forward.sublayer.out_proj": "ff.layer_2",
    "feed_forward.after": "ff.layer_norm",
}
VECTORS = {"content": "r_w_bias", "distance": "r_r_bias", "segment": "r_s_bias"}


def _attention(config: ModelConfig, theirs: str) -> list[AnyRule]:
    """Their matrices are (width, heads, width of a head), the one of the output too."""
    into = chain(TRANSPOSED, joined_axes(1, config.n_heads))
    rules: list[AnyRule] = [
        Rule(f"{ATTENTION}.{{p:q|k|v}}_proj.weight", f"{theirs}.{{p}}", into),
        Rule(f"{ATTENTION}.relative.r_proj.weight", f"{theirs}.r", into),
        Rule(f"{ATTENTION}.o_proj.weight", f"{theirs}.o", joined_axes(1, config.n_heads)),
        Rule(f"{ATTENTION}.relative.segments", f"{theirs}.seg_embed", joined_axes(1, config.n_heads)),
    ]
    for ours, name in VECTORS.items():
        rules.append(Rule(f"{ATTENTION}.relative.{ours}", f"{theirs}.{name}", joined_axes(0, config.n_heads)))
    return rules


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    words, layer = f"{base}word_embedding.weight", f"{base}layer.{{i}}."
    rules: list[AnyRule] = [
        Rule("encoder_embeddings.tokens.weight", words),
        Rule("encoder_embeddings.query", f"{base}mask_emb", LEADING_AXIS),
        *_attention(config, f"{layer}rel_attn"),
        *modules(LAYER, BLOCK, layer),
        *modules(
            {
                "heads.sequence.dense": "sequence_summary.summary",
                "heads.sequence.out_proj": "logits_proj",
                "heads.token.out_proj": "classifier",
                "heads.span.out_proj": "qa_outputs",
            }
        ),
        either_way(base, "transformer"),
    ]
    if "lm" not in config.chosen_heads:
        return rules + unread("lm_loss")
    rules.append(Rule("lm_head.bias", "lm_loss.bias"))
    tied = Copy("lm_loss.weight", of=words)
    return [*rules, tied if config.tie_lm_head else Rule("lm_head.weight", "lm_loss.weight")]


FAMILY = Family("xlnet", architecture_of(CLASSES), _fits, _write, _read, _rules)
