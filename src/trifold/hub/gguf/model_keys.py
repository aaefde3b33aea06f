"""The metadata of a model for a GGUF file: the tables of `architectures` in the other direction.

The result is read back with these tables. What comes back differently cannot be held by a file, and
is refused.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trifold.errors import CheckpointError, SettingsError
from trifold.hub.families import FAMILIES
from trifold.hub.family import Family, with_defaults
from trifold.hub.folder import fewest_changes
from trifold.hub.gguf.architectures import (
    ARCHITECTURES,
    MIXTRAL,
    Architecture,
    Keys,
    llama3_divisors,
)
from trifold.hub.gguf.file_format import Value
from trifold.hub.gguf.metadata import ARCHITECTURE, Metadata
from trifold.nn import ModelConfig
from trifold.settings import Settings

Values = dict[str, Value]
# Fields without a place in a file, and without effect on what a model computes: those of training,
# and the ids of tokens, which are those of the tokenizer.
IGNORED = ("dropout", "bos_id", "eos_id", "pad_id")
REMEDY = "write a Hugging Face folder instead (trifold convert OLD NEW)"
# Keys of config.json -> keys of a file, besides those of the tables.
_SHARED: dict[str, str] = {
    "num_key_value_heads": ".attention.head_count_kv",
    "head_dim": ".attention.key_length .attention.value_length",
    "d_kv": ".attention.value_length",
    "num_local_experts": ".expert_count",
    "num_experts": ".expert_count",
    "num_experts_per_tok": ".expert_used_count",
    "sliding_window": ".attention.sliding_window",
    "attn_logit_softcapping": ".attn_logit_softcapping",
    "final_logit_softcapping": ".final_logit_softcapping",
    "decoder_start_token_id": ".decoder_start_token_id",
    "original_max_position_embeddings": ".rope.scaling.original_context_length",
    "vocab_size": ".vocab_size",
    "type_vocab_size": "tokenizer.ggml.token_type_count",
}
# Architectures whose windows llama.cpp does not apply. Only their own models are written as such.
_IGNORED_WINDOWS = ("phi3",)
# What llama.cpp reads besides, by family.
_OWN: dict[str, Mapping[str, str]] = {
    "gpt_oss": {"intermediate_size": ".expert_feed_forward_length"},
    "t5": {"layer_norm_epsilon": ".attention.layer_norm_epsilon"},
}


@dataclass(frozen=True)
class Target:
    """How a model is written: the name of its architecture, its row, its family, and its config
    there.
    """

    name: str
    architecture: Architecture
    family: Family
    config: ModelConfig

    @property
    def keys(self) -> Keys:
        """The content of config.json."""
        keys = self.family.write(self.config)
        keys["model_type"] = self.family.model_type
        keys["architectures"] = [self.family.architecture(self.config)]
        return {name: value for name, value in keys.items() if value is not None}


def find_target(config: ModelConfig, first: str, place: str) -> Target:
    """The architecture of a model; first: its family, which is preferred.

    Raises CheckpointError if no architecture has all parts of the model.
    """
    config = _for_inference(config, place)
    rows = [*ARCHITECTURES.items(), ("llama", MIXTRAL)]
    rows.sort(key=lambda row: row[1].family != first)
    changes = {}
    for name, architecture in rows:
        if name in _IGNORED_WINDOWS and config.sliding_window and architecture.family != first:
            continue
        family = FAMILIES[architecture.family]
        changes[architecture.family] = family.changes(config)
        if changes[architecture.family] == {}:
            return Target(name, architecture, family, config)
    nearest = fewest_changes(changes)
    fits = f" (it would fit {nearest})" if nearest else ""
    raise CheckpointError(
        f"{place}: no architecture of GGUF files has all of its parts{fits}; {REMEDY}"
    )


def _for_inference(config: ModelConfig, place: str) -> ModelConfig:
    """The config without dropout and pooler, which a file does not hold."""
    heads = tuple(head for head in config.chosen_heads if head != "pooler")
    if heads not in ((), ("lm",)) or (heads and not config.decoder_layers):
        raise CheckpointError(
            f"{place}: GGUF files hold no heads such as {', '.join(heads)}, only language models "
            f"and encoders without a head; {REMEDY}"
        )
    names = [name for name in ModelConfig.model_fields if name.endswith("dropout")]
    optional = {name for name in names if ModelConfig.model_fields[name].default is None}
    off = {name: None if name in optional else 0.0 for name in names}
    return config.model_copy(update=off | {"heads": heads})


# --- metadata -------------------------------------------------------------------------------------


def model_values(target: Target, tensors: Mapping[str, Tensor]) -> tuple[Values, dict[str, Tensor]]:
    """The metadata of a model, without tokenizer, and the tensors that belong to it.

    tensors: those of the file, on the meta device. Raises CheckpointError for a config that a file
    does not hold.
    """
    keys = target.keys
    _add_magnitude(keys)
    values: dict[str, Any] = {ARCHITECTURE: target.name}
    architecture = target.architecture
    tables = (architecture.sizes, architecture.numbers, _SHARED, _OWN.get(architecture.family, {}))
    for table in tables:
        for name, theirs in table.items():
            for key in theirs.split():
                if keys.get(name) is not None:
                    values[_full(target, key.removesuffix("?"))] = keys[name]
    own = {_full(target, key): value for key, value in _further(target, keys)}
    values = {name: _rounded(value) for name, value in (values | own).items()}
    extra = _frequencies(keys)
    _check(target, keys, values, {**tensors, **extra})
    return values, extra


def _full(target: Target, key: str) -> str:
    return target.name + key if key.startswith(".") else key


def _rounded(value: Any) -> Any:
    """A value as a file holds it: numbers are float32."""
    if isinstance(value, float):
        return float(str(np.float32(value)))
    return value


def _further(target: Target, keys: Keys) -> Iterator[tuple[str, Value]]:
    """Values that are computed from several keys."""
    config = target.config
    yield ".feed_forward_length", config.d_ff
    yield ".context_length", config.max_positions
    if target.name == "phi3":  # without the key, llama.cpp takes a window
        yield ".attention.sliding_window", keys.get("sliding_window") or 0
    if target.name == "bert":
        yield ".attention.causal", False
    if target.name == "gemma3":
        kinds = keys["layer_types"]
        step = 1 + next((n for n, kind in enumerate(kinds) if kind == "full_attention"), len(kinds))
        yield ".attention.sliding_window_pattern", step
    yield from _rope(keys)


def _rope(keys: Keys) -> Iterator[tuple[str, Value]]:
    """The values of rotary positions."""
    rope = keys.get("rope_parameters")
    if rope is None:
        return
    if "full_attention" in rope:
        yield ".rope.freq_base_swa", float(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    width = keys.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"]
    yield ".rope.dimension_count", int(width * rope.get("partial_rotary_factor", 1.0))
    yield ".rope.freq_base", float(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "longrope":
        yield ".rope.scaling.attn_factor", rope["attention_factor"]
    if kind not in ("linear", "yarn"):
        return
    yield ".rope.scaling.type", kind
    yield ".rope.scaling.factor", float(rope["factor"])
    if kind == "yarn":
        yield ".rope.scaling.original_context_length", rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                yield f".rope.scaling.yarn_{name}", float(rope[name])


def _add_magnitude(keys: Keys) -> None:
    """Give LongRoPE's factor of rotated vectors, which a config may leave to be computed."""
    rope = keys.get("rope_parameters", {})
    if rope.get("rope_type") != "longrope" or rope.get("attention_factor") is not None:
        return
    original = rope["original_max_position_embeddings"]
    factor = rope["factor"]
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    rope["attention_factor"] = magnitude


def _frequencies(keys: Keys) -> dict[str, Tensor]:
    """The tensors of scaled rotary positions: divisors of the frequencies."""
    rope = keys.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        width = keys.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"]
        return {"rope_freqs.weight": llama3_divisors(width // 2, rope)}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{length}.weight": torch.tensor(rope[f"{length}_factor"])
            for length in ("long", "short")
        }
    return {}


# --- reading back ---------------------------------------------------------------------------------


def _check(
    target: Target, keys: Keys, values: Mapping[str, Value], tensors: Mapping[str, Tensor]
) -> None:
    """Raise CheckpointError unless the metadata stand for the config of the model."""
    place = f"GGUF files of {target.name}"
    try:
        reread = target.family.read(target.architecture.config(Metadata(values, tensors, place)))
        expected = target.family.read(keys)
    except SettingsError as error:
        raise CheckpointError(f"{place} do not hold this model ({error}); {REMEDY}") from None
    wrong = [
        f"{name}: {_short(value)} would be read as {_short(other)}"
        for name, value, other in _differences(expected, reread)
    ]
    if wrong:
        raise CheckpointError(
            "\n  ".join([f"{place} do not hold all settings of this model; {REMEDY}", *wrong])
        )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _differences(before: ModelConfig, after: ModelConfig) -> Iterator[tuple[str, Any, Any]]:
    """The fields with other values, and both."""
    ignored = IGNORED if before.encoder_layers else (*IGNORED, "decoder_start_id")
    for (name, value), (_, other) in zip(with_defaults(before), with_defaults(after), strict=True):
        if not name.endswith(ignored) and not _is_equal(value, other):
            yield name, value, other


def _is_equal(value: Any, other: Any) -> bool:
    """Whether two values are equal up to the precision of float32."""
    if isinstance(value, Settings) and type(value) is type(other):
        return all(_is_equal(a[1], b[1]) for a, b in zip(value, other, strict=True))
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(_is_equal, value, other))
    if isinstance(value, float) and isinstance(other, float | int):
        return math.isclose(value, other, rel_tol=1e-6)
    return bool(value == other)
