"""What a family is: a translation of config.json and a table of rules. One small file each, in families/.

What several of them say in the same way stands here and in decoders.py, rope.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field
from torch import Tensor

from trifold.errors import SettingsError
from trifold.hub.generation import GENERATION_KEYS
from trifold.hub.rules import AnyRule
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings


@dataclass(frozen=True)
class Family:
    """How one `model_type` of config.json is read and written.

    architecture: the name of their class that has the config's heads.
    fits: whether this family can say everything that the config says.
    write: our config as the keys of theirs (model_type and architectures left out).
    read: theirs as ours; raises SettingsError for a key that is not known or not supported.
    rules: which of our parameters are which of their tensors.
    settle: where config.json leaves something open, the config as the tensors have it.
    general: 1 where an older family says some of the same things and is asked first whether it fits what we made
        ourselves; 2 where it fits everything.
    """

    model_type: str
    architecture: Callable[[ModelConfig], str]
    fits: Callable[[ModelConfig], bool]
    write: Callable[[ModelConfig], dict[str, object]]
    read: Callable[[Mapping[str, Any]], ModelConfig]
    rules: Callable[[ModelConfig], Sequence[AnyRule]]
    settle: Callable[[ModelConfig, Mapping[str, Tensor]], ModelConfig] | None = None
    general: Literal[0, 1, 2] = 0


# --- keys ----------------------------------------------------------------------------------------------

# Keys that the reference library writes into configs and that do not change what the model computes.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _name_or_path _num_labels architectures chunk_size_feed_forward dtype
    finetuning_task gradient_checkpointing id2label initializer_range label2id model_type n_ctx n_special
    num_labels output_attentions output_hidden_states output_past predict_special_tokens prefix pretraining_tp
    problem_type pruned_heads return_dict task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers_version use_bfloat16 use_cache use_return_dict
    """.split()
)

File = TypeVar("File", bound=Settings)


def parse_config(kind: type[File], values: Mapping[str, Any], harmless: frozenset[str] = frozenset()) -> File:
    """The keys that a family reads, typed by its settings class; an absent key is at the reference's default.

    Harmless keys are passed over, the family's own among them, and so are null ones that the class does not know.
    Any other is refused.
    """
    passed = HARMLESS | GENERATION_KEYS | harmless
    kept = {
        key: value
        for key, value in values.items()
        if key in kind.model_fields or (value is not None and key not in passed)
    }
    return kind.parse(kept)


def to_ours(keys: Mapping[str, str], file: Settings) -> dict[str, Any]:
    """The values of a file's keys under our names; `keys` are theirs -> ours, where nothing but the name differs."""
    return {ours: getattr(file, theirs) for theirs, ours in keys.items()}


def to_theirs(keys: Mapping[str, str], config: ModelConfig) -> dict[str, object]:
    """The way back of `to_ours`."""
    return {theirs: getattr(config, ours) for theirs, ours in keys.items()}


def says(config: ModelConfig, said: frozenset[str], **fixed: object) -> bool:
    """Whether every field of the config, but those `said` by a family's file, is as `fixed`, or else at our default."""
    return all(
        getattr(config, key) == fixed.get(key, field.default)
        for key, field in ModelConfig.model_fields.items()
        if key not in said
    )


def unless(value: Any, usual: object) -> Any:
    """None where the value goes without saying."""
    return None if value == usual else value


# --- activations ---------------------------------------------------------------------------------------

# Theirs -> ours; the first of several names is the one that is written.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "tanh": "tanh",
}


def activation(key: str, theirs: str, table: Mapping[str, str] = ACTIVATIONS) -> str:
    """Our name of the activation that stands under `key`. Raises SettingsError where we do not have it."""
    if theirs not in table:
        raise SettingsError(f"{key}: {theirs!r} is not known; known: {', '.join(table)}")
    return table[theirs]


def key_of(table: Mapping[str, str], wanted: str) -> str:
    """Their name, the first that means ours."""
    return next(key for key, value in table.items() if value == wanted)


# --- heads ---------------------------------------------------------------------------------------------

# Their classes -> the heads that they have; the first goes without saying.
Architectures = Mapping[str, tuple[Head, ...]]


def heads_of(values: Mapping[str, Any], table: Architectures) -> tuple[Head, ...]:
    """The heads of the first of the file's `architectures`. Raises SettingsError for a class that we do not have."""
    named = values.get("architectures") or [next(iter(table))]
    if not isinstance(named, list) or not isinstance(named[0], str) or named[0] not in table:
        raise SettingsError(f"architectures: {named!r} is not known; known: {', '.join(table)}")
    return table[named[0]]


def architecture_of(table: Architectures) -> Callable[[ModelConfig], str]:
    """The class whose heads a config has, the first where several have them."""
    return lambda config: next(name for name, heads in table.items() if heads == config.chosen_heads)


# --- special tokens ------------------------------------------------------------------------------------

Id: TypeAlias = Annotated[int, Field(ge=0)]
Ends: TypeAlias = Id | Annotated[list[Id], Field(min_length=1)]  # of a family that cannot be without


def first_end(ends: int | list[int]) -> int:
    """The end that the config knows; all of several go to the generation settings."""
    return ends[0] if isinstance(ends, list) else ends


def ids_to_ours(
    vocab_size: int, *, pad: int | None, bos: int | None, eos: int | list[int] | None
) -> dict[str, int]:
    """Ids of a file that may leave some out, or say -1.

    Of several ends the first is taken; where there is none, an id that no token has. Left out, the beginning is the
    end, and so is the padding, which nothing reads.
    """
    end = eos[0] if isinstance(eos, list) and eos else eos
    eos_id = end if isinstance(end, int) and end >= 0 else vocab_size
    spare = eos_id if eos_id < vocab_size else 0
    pad_id = spare if pad is None or pad < 0 else pad
    return {"eos_id": eos_id, "bos_id": spare if bos is None or bos < 0 else bos, "pad_id": pad_id}


def ids_to_theirs(config: ModelConfig) -> dict[str, object]:
    """The way back: an end that no token has is none, and padding with the end is said where a head looks for it."""
    counts = "sequence" in config.chosen_heads
    return {
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id if config.eos_id < config.vocab_size else None,
        "pad_token_id": config.pad_id if counts else unless(config.pad_id, config.eos_id),
    }
