"""T5 (Raffel et al. 2020) in all its versions: 1.0, 1.1 (gated), Flan; and mT5, whose defaults are others.

RMS norms before each part, no biases anywhere, scores that are not scaled but shifted by what the distance of two
tokens says. Version 1.0 writes its logits with the embedding table, divided by √d_model; from 1.1 on the table of the
head is another. Which of the two a file means, its tensors say where config.json does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from trifold.hub.family import (
    ACTIVATIONS,
    Ends,
    Family,
    activation,
    first_end,
    heads_of,
    key_of,
    labels_of,
    labels_written,
    parse_config,
    says,
    unless,
)
from trifold.hub.rules import AnyRule, Copy, Ignored, Renamed, Rule
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

ENDLESS = 2**15  # tokens: no table of positions ends, so this is only where a generation stops at the latest

# What follows "T5" or "MT5" in the name of a class -> its stacks, and its heads; the first goes without saying.
KINDS: dict[str, tuple[str, tuple[Head, ...]]] = {
    "ForConditionalGeneration": ("encoder-decoder", ("lm",)),
    "Model": ("encoder-decoder", ()),
    "ForSequenceClassification": ("encoder-decoder", ("sequence",)),
    "ForQuestionAnswering": ("encoder-decoder", ("span",)),
    "EncoderModel": ("encoder", ()),
    "ForTokenClassification": ("encoder", ("token",)),
}
LABELLED = frozenset({"sequence", "token"})  # heads that know a number of labels

# --- config.json ---------------------------------------------------------------------------------------


class T5File(Settings):
    """Their keys, types and defaults."""

    vocab_size: int = Field(32128, gt=0)
    d_model: int = Field(512, gt=0)
    d_kv: int = Field(64, gt=0)
    d_ff: int = Field(2048, gt=0)
    num_layers: int = Field(6, gt=0)
    num_decoder_layers: int | None = Field(None, gt=0)
    num_heads: int = Field(8, gt=0)
    relative_attention_num_buckets: int = Field(32, gt=1)
    relative_attention_max_distance: int = Field(128, gt=1)
    dropout_rate: float = Field(0.1, ge=0, lt=1)
    classifier_dropout: float = Field(0.0, ge=0, lt=1)
    layer_norm_epsilon: float = Field(1e-6, gt=0)
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = (
        None  # these two follow from the one before, and prevail where they are written
    )
    is_gated_act: bool | None = None
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    pad_token_id: int = Field(0, ge=0)
    eos_token_id: Ends = 1
    bos_token_id: int | None = Field(None, ge=0)
    decoder_start_token_id: int | None = Field(None, ge=0)
    is_encoder_decoder: bool = True  # the class says it
    is_decoder: Literal[False] = False

    # Ours: files of others have it not.
    max_positions: int = Field(ENDLESS, gt=0)

    @property
    def activation(self) -> str:
        """By our name."""
        if self.dense_act_fn is not None:
            return activation("dense_act_fn", self.dense_act_fn)
        named = self.feed_forward_proj.removeprefix("gated-")
        # The one pair of names that means another activation than the second alone does.
        named = "gelu_new" if self.feed_forward_proj == "gated-gelu" else named
        return activation("feed_forward_proj", named)

    @property
    def gated(self) -> bool:
        said = self.is_gated_act
        return self.feed_forward_proj.startswith("gated-") if said is None else said

    @property
    def logits_scale(self) -> float:
        said = self.scale_decoder_outputs
        return float(self.d_model**-0.5) if (self.tie_word_embeddings if said is None else said) else 1.0


class MT5File(T5File):
    """The same with other defaults; its logits are never scaled."""

    vocab_size: int = Field(250112, gt=0)
    d_ff: int = Field(1024, gt=0)
    num_layers: int = Field(8, gt=0)
    num_heads: int = Field(6, gt=0)
    feed_forward_proj: str = "gated-gelu"

    @property
    def logits_scale(self) -> float:
        return 1.0


# What T5 always is, and where it says the class of a sequence.
FIXED: dict[str, Any] = {
    "positions": "relative",
    "scale_embeddings": False,
    "norm": "rms",
    "norm_placement": "pre",
    "feed_forward_bias": False,
    "attention_scale": 1.0,
}
OF_HEAD: dict[str, dict[str, Any]] = {
    "sequence": {"classifier_input": "eos", "classifier_transform": "tanh"},
    "span": {"classifier_dropout": 0.0},
}
# What the keys of a file say, or `_fits` has looked at; every other key of ours must be at its default.
SAID = frozenset(
    """
    shape vocab_size max_positions d_model n_layers n_decoder_layers n_heads n_kv_heads d_head d_ff relative_buckets
    relative_distance norm_epsilon activation gated heads tie_lm_head logits_scale dropout attention_dropout
    activation_dropout pad_id bos_id eos_id decoder_start_id
    """.split()
)


def _fixed(heads: tuple[Head, ...]) -> dict[str, Any]:
    return FIXED | {key: value for head in heads for key, value in OF_HEAD.get(head, {}).items()}


def _fits(config: ModelConfig, scales: tuple[float, ...]) -> bool:
    heads = config.chosen_heads
    writes = "lm" in heads
    labelled = {"n_labels", "classifier_dropout"} if LABELLED & {*heads} else set()
    return (
        (config.shape, heads) in KINDS.values()
        and says(config, SAID | labelled, **_fixed(heads))
        and config.kv_heads == config.n_heads
        and config.activation in ACTIVATIONS.values()
        and config.attention_dropout == config.activation_dropout == config.dropout
        and config.logits_scale in (scales if writes else (1.0,))
        and (config.tie_lm_head or writes)
    )


def _write(config: ModelConfig) -> dict[str, object]:
    labelled = LABELLED & {*config.chosen_heads}
    act = "gelu_new" if config.activation == "gelu-tanh" else key_of(ACTIVATIONS, config.activation)
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": config.head_width,
        "d_ff": config.d_ff,
        "num_layers": config.n_layers,
        "num_decoder_layers": config.n_decoder_layers or config.n_layers,
        "num_heads": config.n_heads,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_distance,
        "dropout_rate": config.dropout,
        "classifier_dropout": config.dropout
        if config.classifier_dropout is None
        else config.classifier_dropout,
        "layer_norm_epsilon": config.norm_epsilon,
        "feed_forward_proj": f"gated-{act.removesuffix('_new')}" if config.gated else act,
        "dense_act_fn": act,
        "is_gated_act": config.gated,
        "tie_word_embeddings": config.tie_lm_head,
        "scale_decoder_outputs": config.logits_scale != 1.0,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": config.bos_id,
        "decoder_start_token_id": config.start_id,
        "is_encoder_decoder": config.shape == "encoder-decoder",
        "max_positions": config.max_positions,
        **(labels_written(config.n_labels) if labelled else {}),
    }


def _read(values: Mapping[str, Any], kind: type[T5File], prefix: str) -> ModelConfig:
    file, shape, heads = parse_config(kind, values, HARMLESS), *_kind(values, prefix)
    start, writes, drop = file.decoder_start_token_id, "lm" in heads, file.dropout_rate
    bos = (file.pad_token_id if start is None else start) if file.bos_token_id is None else file.bos_token_id
    depth = file.num_decoder_layers if shape == "encoder-decoder" else None
    ours = {
        **_fixed(heads),
        "shape": shape,
        "vocab_size": file.vocab_size,
        "max_positions": file.max_positions,
        "d_model": file.d_model,
        "n_layers": file.num_layers,
        "n_decoder_layers": unless(depth, file.num_layers),
        "n_heads": file.num_heads,
        "d_head": None if file.num_heads * file.d_kv == file.d_model else file.d_kv,
        "d_ff": file.d_ff,
        "relative_buckets": file.relative_attention_num_buckets,
        "relative_distance": file.relative_attention_max_distance,
        "norm_epsilon": file.layer_norm_epsilon,
        "activation": file.activation,
        "gated": file.gated,
        "heads": unless(heads, () if shape == "encoder" else ("lm",)),
        "tie_lm_head": file.tie_word_embeddings or not writes,
        "logits_scale": file.logits_scale if writes else 1.0,
        "dropout": drop,
        "attention_dropout": drop,
        "activation_dropout": drop,
        "pad_id": file.pad_token_id,
        "eos_id": first_end(file.eos_token_id),
        "bos_id": bos,
        "decoder_start_id": unless(start, bos),
    }
    if LABELLED & {*heads}:
        ours |= {"n_labels": labels_of(values), "classifier_dropout": unless(file.classifier_dropout, drop)}
    return ModelConfig.parse(ours)


HARMLESS = frozenset({"initializer_factor", "n_positions"})  # neither of them is minded by the reference


def _kind(values: Mapping[str, Any], prefix: str) -> tuple[str, tuple[Head, ...]]:
    named = {f"{prefix}{name}": kind for name, kind in KINDS.items()}
    heads = heads_of(values, {name: heads for name, (_, heads) in named.items()})
    first = (values.get("architectures") or [next(iter(named))])[0]
    return named[first][0], heads


# --- weights -------------------------------------------------------------------------------------------


def _settle(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelConfig:
    """Newer files say that the head's table is the embeddings' whatever it is, and hold it where it is another."""
    head, table = "lm_head.weight", "shared.weight"
    if not config.tie_lm_head or head not in weights or table not in weights:
        return config
    return config.model_copy(update={"tie_lm_head": torch.equal(weights[head], weights[table])})


ATTENTIONS = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}
# Their layers of a block, in this order.
PARTS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    inner = "transformer." if LABELLED & {*config.chosen_heads} else ""  # these wrap the model in another
    stack, shared = "{stack:encoder|decoder}", f"{inner}shared.weight"
    offsets = "SelfAttention.relative_attention_bias.weight"
    table: list[AnyRule] = [
        Rule("encoder_embeddings.tokens.weight", shared),
        Copy(f"{inner}{stack}.embed_tokens.weight", of=shared),
        Renamed(f"{inner}{stack}.embed_tokens.weight", shared),
        Rule(f"{stack}.offsets.weight", f"{inner}{{stack}}.block.0.layer.0.{offsets}"),
        Rule(f"{stack}.final_norm.weight", f"{inner}{{stack}}.final_layer_norm.weight"),
        Ignored(f"{inner}decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        Rule("heads.sequence.{part:dense|out_proj}.{*rest}", "classification_head.{part}.{rest}"),
        Rule("heads.token.out_proj.{*rest}", "classifier.{rest}"),
        Rule("heads.span.out_proj.{*rest}", "qa_outputs.{rest}"),
    ]
    if config.tie_lm_head:
        table += [Copy("lm_head.weight", of=shared), Renamed("lm_head.weight", shared)]
    else:
        table.append(Rule("lm_head.weight", "lm_head.weight"))
    for side, parts in PARTS.items():
        for number, part in enumerate(parts):
            ours, theirs = f"{side}.blocks.{{i}}.{part}", f"{inner}{side}.block.{{i}}.layer.{number}"
            table.append(Rule(f"{ours}.enter.weight", f"{theirs}.layer_norm.weight"))
            table += _inside(part, f"{ours}.sublayer", theirs, config.gated)
    return table


def _inside(part: str, ours: str, theirs: str, gated: bool) -> list[AnyRule]:
    if part in ATTENTIONS:
        return [Rule(f"{ours}.{{p:q|k|v|o}}_proj.weight", f"{theirs}.{ATTENTIONS[part]}.{{p}}.weight")]
    dense = f"{theirs}.DenseReluDense"
    return [
        Rule(f"{ours}.gate_proj.weight", f"{dense}.wi_0.weight"),
        Rule(f"{ours}.in_proj.weight", f"{dense}.wi_1.weight" if gated else f"{dense}.wi.weight"),
        Rule(f"{ours}.out_proj.weight", f"{dense}.wo.weight"),
    ]


def _family(model_type: str, prefix: str, kind: type[T5File]) -> Family:
    def fits(config: ModelConfig) -> bool:
        return _fits(config, (1.0,) if kind is MT5File else (1.0, float(config.d_model**-0.5)))

    def architecture(config: ModelConfig) -> str:
        wanted = (config.shape, config.chosen_heads)
        return next(f"{prefix}{name}" for name, kind in KINDS.items() if kind == wanted)

    def read(values: Mapping[str, Any]) -> ModelConfig:
        return _read(values, kind, prefix)

    return Family(model_type, architecture, fits, _write, read, _rules, _settle)


FAMILY = _family("t5", "T5", T5File)
MT5 = _family("mt5", "MT5", MT5File)
