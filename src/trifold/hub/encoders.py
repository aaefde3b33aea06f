"""What the families of encoders have in common: their keys of config.json, and the names of what BERT has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    activation,
    heads_of,
    ids_to_ours,
    ids_to_theirs,
    key_of,
    says,
    to_ours,
    to_theirs,
)
from trifold.hub.labels import LABEL_KEYS, labels_to_ours, labels_to_theirs
from trifold.hub.rules import AnyRule, Copy, Dead, Ignored, Renamed, Rule
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

# --- config.json ---------------------------------------------------------------------------------------

# Beyond any model in use; a product of absurd sizes would not fit a number.
LARGEST_VOCABULARY = 2**31


class EncoderFile(Settings):
    """Keys that all of them have, of text or pictures, with BERT's defaults."""

    hidden_size: int = Field(768, gt=0)
    num_hidden_layers: int = Field(12, gt=0)
    num_attention_heads: int = Field(12, gt=0)
    intermediate_size: int = Field(3072, gt=0)
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    layer_norm_eps: float = Field(1e-12, gt=0)

    # What only other models have.
    is_decoder: Literal[False] = False
    is_encoder_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


class TextEncoderFile(EncoderFile):
    """And those of the ones that read text."""

    vocab_size: int = Field(30522, gt=0, le=LARGEST_VOCABULARY)
    max_position_embeddings: int = Field(512, gt=0)
    type_vocab_size: int = Field(2, gt=0, le=2**16)
    pad_token_id: int | None = Field(0, ge=0)
    bos_token_id: int | None = Field(None, ge=0)
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = Field(None, ge=0, lt=1)
    position_embedding_type: Literal["absolute"] = "absolute"


# What every one of them is.
ENCODER: dict[str, Any] = {"shape": "encoder", "positions": "learned", "scale_embeddings": False}
TEXT_ENCODER: dict[str, Any] = ENCODER | {"embedding_norm": True, "attention_bias": True}

KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_epsilon",
}
TEXT_KEYS = KEYS | {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "n_token_types",
    "tie_word_embeddings": "tie_lm_head",
    "classifier_dropout": "classifier_dropout",
}
IDS = ("pad_id", "bos_id", "eos_id")

# What a head's class does and no key says, given the activation of the model.
OfHead = Callable[[str], Mapping[Head, Mapping[str, Any]]]
CLASSIFIERS: frozenset[Head] = frozenset({"sequence", "token"})


def brought(of_head: OfHead, heads: tuple[Head, ...], activation: str) -> dict[str, Any]:
    """All that these heads bring along."""
    table = of_head(activation)
    return {key: value for head in heads for key, value in table.get(head, {}).items()}


def masked_lm(activation: str) -> dict[str, Any]:
    """The head of masked language models: dense, activation, norm, the embeddings again, and a bias."""
    return {"lm_head_transform": activation, "lm_head_bias": True}


def text_to_ours(
    file: TextEncoderFile, values: Mapping[str, Any], classes: Architectures, of_head: OfHead
) -> dict[str, Any]:
    """What the keys of `TextEncoderFile` and the file's class say, in our terms."""
    heads, inner = heads_of(values, classes), activation("hidden_act", file.hidden_act)
    ids = word_ids(file.vocab_size, file.pad_token_id, file.bos_token_id, file.eos_token_id)
    return {
        **TEXT_ENCODER,
        **to_ours(TEXT_KEYS, file),
        **ids,
        **head_to_ours(values, heads),
        **brought(of_head, heads, inner),
        "activation": inner,
    }


def word_ids(
    vocab_size: int, pad: int | None, bos: int | None, eos: int | list[int] | None
) -> dict[str, int]:
    """`ids_to_ours`, where the padding must be one of the words: the reference gives its row no gradient."""
    ids = ids_to_ours(vocab_size, pad=pad, bos=bos, eos=eos)
    if ids["pad_id"] >= vocab_size:
        raise SettingsError(f"pad_token_id: {pad} is no word of a vocabulary of {vocab_size}")
    return ids


def head_to_ours(values: Mapping[str, Any], heads: tuple[Head, ...]) -> dict[str, Any]:
    """The heads, and the classes that they tell apart."""
    return {"heads": heads} | (labels_to_ours(values) if CLASSIFIERS.intersection(heads) else {})


def head_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back; the class itself is written as `architectures`."""
    return labels_to_theirs(config) if CLASSIFIERS.intersection(config.chosen_heads) else {}


def text_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back of `text_to_ours`."""
    return {
        **to_theirs(TEXT_KEYS, config),
        **ids_to_theirs(config),
        **head_to_theirs(config),
        "pad_token_id": config.pad_id,  # positions may begin behind it, and the reference gives it no gradient
        "hidden_act": key_of(ACTIVATIONS, config.activation),
    }


def encoder_says(
    config: ModelConfig, classes: Architectures, said: frozenset[str], of_head: OfHead, **fixed: object
) -> bool:
    """`says`, of a model with the heads of one of these classes; `said` are the keys that the family's file has."""
    heads = config.chosen_heads
    labels = LABEL_KEYS if CLASSIFIERS.intersection(heads) else frozenset[str]()
    everything = fixed | brought(of_head, heads, config.activation)
    return heads in classes.values() and says(config, said | labels | {"heads"}, **everything)


# --- weights -------------------------------------------------------------------------------------------

PART = "{part:weight|bias}"
BLOCK = "encoder.blocks.{i}."  # ours


def modules(names: Mapping[str, str], ours: str = "", theirs: str = "") -> list[AnyRule]:
    """A rule for the weight and the bias of each module, our name -> theirs; the beginnings are put before all."""
    return [Rule(f"{ours}{mine}.{PART}", f"{theirs}{name}.{{part}}") for mine, name in names.items()]


def below(config: ModelConfig, prefix: str) -> str:
    """The beginning of their names below the heads: a model without any, but a pooler, is saved without it."""
    return "" if config.chosen_heads in ((), ("pooler",)) else f"{prefix}."


EMBEDDINGS = {
    "encoder_embeddings.tokens": "embeddings.word_embeddings",
    "encoder_embeddings.positions": "embeddings.position_embeddings",
    "encoder_embeddings.token_types": "embeddings.token_type_embeddings",
    "encoder_embeddings.norm": "embeddings.LayerNorm",
}
BERT_LAYER = {
    "self_attention.sublayer.q_proj": "attention.self.query",
    "self_attention.sublayer.k_proj": "attention.self.key",
    "self_attention.sublayer.v_proj": "attention.self.value",
    "self_attention.sublayer.o_proj": "attention.output.dense",
    "self_attention.after": "attention.output.LayerNorm",
    "feed_forward.sublayer.in_proj": "intermediate.dense",
    "feed_forward.sublayer.out_proj": "output.dense",
    "feed_forward.after": "output.LayerNorm",
}


def either_way(base: str, prefix: str) -> Renamed:
    """The names of files that were saved with the prefix where we await none, or without."""
    everything = "{*path}"
    return Renamed(everything, base + everything) if base else Renamed(f"{prefix}.{everything}", everything)


def around(config: ModelConfig, prefix: str) -> list[AnyRule]:
    """The embeddings, and what old files have there: names of 2018, buffers, and the model's own name."""
    base = below(config, prefix)
    rules = modules(EMBEDDINGS, theirs=base)
    rules += [Ignored(f"{base}embeddings.{{buffer:position_ids|token_type_ids}}")]
    rules += [Renamed("{*path}.gamma", "{*path}.weight"), Renamed("{*path}.beta", "{*path}.bias")]
    return [*rules, either_way(base, prefix)]


def unread(*theirs: str) -> list[AnyRule]:
    """Modules that the first training left behind, and that the class of the file does not have."""
    return [Ignored(f"{module}.{PART}") for module in theirs]


def output_layer(config: ModelConfig, prefix: str, layer: str, bias: str) -> list[AnyRule]:
    """The last layer of a masked language model, over the vocabulary: their linear `layer`, whose bias lies apart.

    Tied, layer and bias are one with the embeddings and with `bias`. Untied, it is the layer's own that are used, and
    nothing reads the other bias.
    """
    if not config.tie_lm_head:
        return [*modules({"lm_head": layer}), Dead(bias, like=f"{layer}.bias")]
    table = f"{below(config, prefix)}embeddings.word_embeddings.weight"
    return [
        Rule("lm_head.bias", bias),
        Copy(f"{layer}.weight", of=table),
        Copy(f"{layer}.bias", of=bias),
        Renamed(f"{layer}.weight", table),
        Renamed(f"{layer}.bias", bias),
    ]
