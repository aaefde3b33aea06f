"""GPT-Neo (Black et al. 2021): GPT-2 with unscaled scores, every other layer seeing a window only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.decoders import (
    ATTENTION,
    CLASSIFIERS,
    DECODER,
    FEED_FORWARD,
    GPT_HARMLESS,
    PART,
    B,
    DecoderFile,
    around,
    below,
    buffers,
    classes,
    common_to_ours,
    common_to_theirs,
    cut_evenly,
    decoder_says,
    linear,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Family,
    activation,
    architecture_of,
    heads_of,
    key_of,
    parse_config,
    to_ours,
    to_theirs,
    unless,
)
from trifold.hub.rules import AnyRule, Rule
from trifold.nn import ModelConfig

CLASSES = classes("GPTNeo", *CLASSIFIERS, "ForQuestionAnswering")
FIXED = {"positions": "learned", "attention_scale": 1.0, "attention_out_bias": True}
KEYS = {
    "max_position_embeddings": "max_positions",
    "hidden_size": "d_model",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "resid_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "layer_norm_epsilon": "norm_epsilon",
}
SAID = frozenset(
    {*KEYS.values(), "d_ff", "d_head", "n_kv_heads", "activation", "embedding_dropout"}
    | {"sliding_window", "window_pattern"}
)
WINDOW = 256


class GPTNeoFile(DecoderFile):
    """Their keys, types and defaults."""

    vocab_size: int = Field(50257, gt=0)
    max_position_embeddings: int = Field(2048, gt=0)
    hidden_size: int = Field(2048, gt=0)
    num_layers: int = Field(24, gt=0)
    attention_types: list[Any] | None = None
    attention_layers: list[str] | None = None  # what attention_types says, once more
    num_heads: int = Field(16, gt=0)
    intermediate_size: int | None = Field(None, gt=0)
    window_size: int = Field(WINDOW, gt=0)
    activation_function: str = "gelu_new"
    resid_dropout: float = Field(0.0, ge=0, lt=1)
    embed_dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    layer_norm_epsilon: float = Field(1e-5, gt=0)
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256


def _fits(config: ModelConfig) -> bool:
    whole = cut_evenly(config) and config.kv_heads == config.n_heads
    return whole and decoder_says(config, CLASSES, SAID, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    embed = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    pattern = config.window_pattern if config.sliding_window else ("global",)
    layers = [pattern[n % len(pattern)] for n in range(config.n_layers)]
    return {
        **common_to_theirs(config),
        **to_theirs(KEYS, config),
        "intermediate_size": config.d_ff,
        "activation_function": key_of(ACTIVATIONS, config.activation),
        "embed_dropout": embed,
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": config.sliding_window or WINDOW,
    }


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(GPTNeoFile, values, GPT_HARMLESS)
    layers = _layers([[["global", "local"], 12]] if file.attention_types is None else file.attention_types)
    if len(layers) != file.num_layers:
        raise SettingsError(
            f"attention_types: names {len(layers)} layers, and num_layers is {file.num_layers}"
        )
    if file.attention_layers not in (None, layers):
        raise SettingsError(
            f"attention_layers: {file.attention_layers} contradicts attention_types, which gives {layers}"
        )
    return ModelConfig.parse(
        {
            **DECODER,
            **FIXED,
            **common_to_ours(file, file.vocab_size, values, heads_of(values, CLASSES)),
            **to_ours(KEYS, file),
            "d_ff": file.intermediate_size or 4 * file.hidden_size,
            "activation": activation("activation_function", file.activation_function),
            "embedding_dropout": unless(file.embed_dropout, file.resid_dropout),
            **(
                {"sliding_window": file.window_size, "window_pattern": _period(layers)}
                if "local" in layers
                else {}
            ),
        }
    )


def _layers(types: Sequence[Any]) -> list[str]:
    """[[["global", "local"], 12]] -> global, local, global, … of every layer."""
    layers: list[str] = []
    for item in types:
        match item:
            case [[*kinds], int(times)] if (
                all(k in ("global", "local") for k in kinds) and times * len(kinds) < 10_000
            ):
                layers += kinds * times
            case _:
                raise SettingsError(
                    f"attention_types: {item!r} is not a list of global and local, and how often"
                )
    return layers


def _period(layers: Sequence[str]) -> tuple[str, ...]:
    """The shortest beginning that, repeated, gives all."""
    for length in range(1, len(layers) + 1):
        if all(layer == layers[n % length] for n, layer in enumerate(layers)):
            return tuple(layers[:length])
    return tuple(layers)


def _rules(config: ModelConfig) -> list[AnyRule]:
    base = below(config, "transformer")
    layer = f"{base}h.{{i}}"
    return [
        *around(config, "transformer", embedding="wte.weight"),
        Rule("decoder_embeddings.positions.weight", f"{base}wpe.weight"),
        Rule(f"{B}.self_attention.enter.{PART}", f"{layer}.ln_1.{{part}}"),
        Rule(f"{ATTENTION}.{{p:q|k|v}}_proj.weight", f"{layer}.attn.attention.{{p}}_proj.weight"),
        *linear(f"{ATTENTION}.o_proj", f"{layer}.attn.attention.out_proj"),
        Rule(f"{B}.feed_forward.enter.{PART}", f"{layer}.ln_2.{{part}}"),
        *linear(f"{FEED_FORWARD}.in_proj", f"{layer}.mlp.c_fc"),
        *linear(f"{FEED_FORWARD}.out_proj", f"{layer}.mlp.c_proj"),
        Rule(f"decoder.final_norm.{PART}", f"{base}ln_f.{{part}}"),
        *buffers(f"{layer}.attn.attention", "bias", "masked_bias"),
    ]


FAMILY = Family("gpt_neo", architecture_of(CLASSES), _fits, _write, _read, _rules)
