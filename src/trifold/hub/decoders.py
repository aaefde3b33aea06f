"""What the families of decoders have in common: their classes, their special tokens and the names around the stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    activation,
    ids_to_ours,
    ids_to_theirs,
    key_of,
    says,
    to_ours,
    to_theirs,
    unless,
)
from trifold.hub.labels import LABEL_KEYS, labels_to_ours, labels_to_theirs
from trifold.hub.rules import SAME, AnyRule, Copy, Ignored, Renamed, Rule, Transform, chain
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings


class DecoderFile(Settings):
    """Keys that all of them have."""

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = Field(None, ge=0, lt=1)

    is_decoder: bool = False  # it is one in any case

    # What only other models have.
    is_encoder_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False


# What every one of them is.
DECODER: dict[str, Any] = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}

SUFFIXES: dict[str, tuple[Head, ...]] = {
    "ForCausalLM": ("lm",),
    "Model": (),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("token",),
    "ForQuestionAnswering": ("span",),
}


def classes(stem: str, *suffixes: str, lm: str = "ForCausalLM") -> Architectures:
    """A family's classes with these endings, and the two that every family has."""
    every = {lm: SUFFIXES["ForCausalLM"], "Model": SUFFIXES["Model"]}
    return {stem + end: heads for end, heads in (every | {s: SUFFIXES[s] for s in suffixes}).items()}


CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")

# --- config.json ---------------------------------------------------------------------------------------

# What a head's class does and no key says.
OF_HEAD: dict[str, dict[str, Any]] = {
    "sequence": {"classifier_input": "last", "classifier_bias": False, "classifier_dropout": 0.0},
    "span": {"classifier_dropout": 0.0},
}
SAID = frozenset({"vocab_size", "pad_id", "bos_id", "eos_id", "tie_lm_head", "heads"})
SAID_OF_HEAD = {"sequence": LABEL_KEYS, "token": LABEL_KEYS | {"classifier_dropout"}}


def common_to_ours(
    file: DecoderFile, vocab_size: int, values: Mapping[str, Any], heads: tuple[Head, ...]
) -> dict[str, Any]:
    """What the keys of `DecoderFile` and the heads say, in our terms."""
    ours: dict[str, Any] = {
        "vocab_size": vocab_size,
        "tie_lm_head": file.tie_word_embeddings,
        "heads": None if heads == ("lm",) else heads,
        **ids_to_ours(vocab_size, pad=file.pad_token_id, bos=file.bos_token_id, eos=file.eos_token_id),
    }
    for head in heads:
        ours |= OF_HEAD.get(head, {})
        if head in SAID_OF_HEAD:
            ours |= labels_to_ours(values)
        if head == "token":
            ours["classifier_dropout"] = 0.1 if file.classifier_dropout is None else file.classifier_dropout
    return ours


def common_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back."""
    theirs: dict[str, object] = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_lm_head,
        **ids_to_theirs(config),
    }
    if any(head in SAID_OF_HEAD for head in config.chosen_heads):
        theirs |= labels_to_theirs(config)
    if "token" in config.chosen_heads:
        theirs["classifier_dropout"] = (
            config.dropout if config.classifier_dropout is None else config.classifier_dropout
        )
    return theirs


def decoder_says(
    config: ModelConfig, table: Architectures, said: frozenset[str] | set[str], **fixed: object
) -> bool:
    """`says`, of a decoder with one of these heads; `said` are the family's own keys."""
    if config.chosen_heads not in table.values():
        return False
    all_said, all_fixed = SAID | said, DECODER | fixed
    for head in config.chosen_heads:
        all_said |= SAID_OF_HEAD.get(head, set())
        all_fixed |= OF_HEAD.get(head, {})
    return says(config, all_said, **all_fixed)


# --- weights -------------------------------------------------------------------------------------------

B = "decoder.blocks.{i}"  # ours
ATTENTION = f"{B}.self_attention.sublayer"
FEED_FORWARD = f"{B}.feed_forward.sublayer"
PART = "{part:weight|bias}"


def below(config: ModelConfig, prefix: str) -> str:
    """The beginning of their names below the heads: a bare model is saved without."""
    return f"{prefix}." if config.chosen_heads else ""


def around(
    config: ModelConfig,
    prefix: str,
    *,
    embedding: str,
    token_head: str = "classifier",
    lm_head: str = "lm_head",
) -> list[AnyRule]:
    """The rules of embeddings and heads, and the names of files saved with the prefix where we await none, or without.

    embedding: their name of the token table, without prefix.
    """
    table, everything = below(config, prefix) + embedding, "{*path}"
    rules: list[AnyRule] = [
        Rule("decoder_embeddings.tokens.weight", table),
        Rule(f"heads.token.out_proj.{PART}", f"{token_head}.{{part}}"),
        Rule(f"heads.sequence.out_proj.{PART}", "score.{part}"),
        Rule(f"heads.span.out_proj.{PART}", "qa_outputs.{part}"),
    ]
    if not config.chosen_heads:
        return [*rules, Renamed(f"{prefix}.{everything}", everything)]
    rules.append(Renamed(everything, f"{prefix}.{everything}"))
    if "lm" not in config.chosen_heads:
        return rules
    rules.append(Rule("lm_head.bias", f"{lm_head}.bias"))
    if not config.tie_lm_head:
        return [*rules, Rule("lm_head.weight", f"{lm_head}.weight")]
    return [*rules, Copy(f"{lm_head}.weight", of=table), Renamed(f"{lm_head}.weight", table)]


def buffers(place: str, *names: str) -> list[AnyRule]:
    """Tensors of old files that can be computed: causal masks, waves."""
    return [Ignored(f"{place}.{name}") for name in names]


def qkv(theirs: str, how: Transform, matrix: Transform = SAME, order: str = "qkv") -> list[AnyRule]:
    """One matrix of theirs, and its bias, for three of ours; `matrix` is what their matrices undergo besides."""
    ours = {part: tuple(f"{ATTENTION}.{p}_proj.{part}" for p in order) for part in ("weight", "bias")}
    return [
        Rule(ours["weight"], f"{theirs}.weight", chain(how, matrix)),
        Rule(ours["bias"], f"{theirs}.bias", how),
    ]


def linear(ours: str, theirs: str, matrix: Transform = SAME) -> list[AnyRule]:
    """A matrix and its bias, where there is one."""
    return [Rule(f"{ours}.weight", f"{theirs}.weight", matrix), Rule(f"{ours}.bias", f"{theirs}.bias")]


# --- the keys of OpenAI's releases, which others took over ---------------------------------------------


class GPTFile(DecoderFile):
    """GPT-2's keys and defaults."""

    vocab_size: int = Field(50257, gt=0)
    n_positions: int = Field(1024, gt=0)
    n_embd: int = Field(768, gt=0)
    n_layer: int = Field(12, gt=0)
    n_head: int = Field(12, gt=0)
    n_inner: int | None = Field(None, gt=0)
    activation_function: str = "gelu_new"
    resid_pdrop: float = Field(0.1, ge=0, lt=1)
    embd_pdrop: float = Field(0.1, ge=0, lt=1)
    attn_pdrop: float = Field(0.1, ge=0, lt=1)
    layer_norm_epsilon: float = Field(1e-5, gt=0)
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256


GPT_KEYS = {
    "n_positions": "max_positions",
    "n_embd": "d_model",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "norm_epsilon",
}
GPT_SAID = frozenset({*GPT_KEYS.values(), "d_ff", "d_head", "n_kv_heads", "activation", "embedding_dropout"})
# Of a head of two answers, which is not read; and what the reference no longer looks at.
GPT_HARMLESS = frozenset(
    """
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout summary_last_dropout
    """.split()
)


def gpt_to_ours(file: GPTFile, values: Mapping[str, Any], heads: tuple[Head, ...]) -> dict[str, Any]:
    """What these keys say, in our terms."""
    return {
        **DECODER,
        **common_to_ours(file, file.vocab_size, values, heads),
        **to_ours(GPT_KEYS, file),
        "d_ff": file.n_inner or 4 * file.n_embd,
        "activation": activation("activation_function", file.activation_function),
        "embedding_dropout": unless(file.embd_pdrop, file.resid_pdrop),
    }


def gpt_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back."""
    embd = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    return {
        **common_to_theirs(config),
        **to_theirs(GPT_KEYS, config),
        "n_inner": config.d_ff,
        "activation_function": key_of(ACTIVATIONS, config.activation),
        "embd_pdrop": embd,
    }


def cut_evenly(config: ModelConfig) -> bool:
    """Whether the heads share the model's width, as most families have it."""
    return config.n_heads * config.head_width == config.d_model
