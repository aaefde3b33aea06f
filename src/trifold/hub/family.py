"""Checkpoint families: tables that translate config.json and tensor names in both directions.

A family is a list of rows (their key, our field, default), the fields that its classes fix, and rules for its tensors.
Reading, writing, and whether a family can represent a config all follow from these. Shared rows are in decoders.py,
encoders.py and rope.py; each file in families/ holds one family.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, create_model
from torch import Tensor

from trifold.errors import SettingsError
from trifold.hub.generation import GENERATION_KEYS
from trifold.hub.labels import labels_to_ours, labels_to_theirs
from trifold.hub.rules import SAME, AnyRule, Ignored, Renamed, Rule, Transform
from trifold.nn import ModelConfig
from trifold.nn.config import Head
from trifold.settings import Settings

Fields: TypeAlias = dict[str, Any]  # values of ModelConfig by field name
Keys: TypeAlias = dict[str, tuple[Any, Any]]  # their keys: (type, default)

# --- rows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One key of config.json that sets one field of ModelConfig.

    type: that of our field unless given; null is allowed where the default is None or with `nullable`.
    map: their values -> ours; the first of several equivalent names is written.
    load: (their value, the fields read so far) -> our value.
    save: our value -> theirs.
    heads: the key sets the field, and is written, only for models with one of these heads.
    everywhere: it is written for all models nevertheless.
    optional: None is written as null instead of the value that None stands for.
    """

    key: str
    field: str
    default: Any
    _: KW_ONLY
    type: Any = None
    nullable: bool = False
    map: Mapping[Any, Any] | None = None
    load: Callable[[Any, Fields], Any] | None = None
    save: Callable[[Any], Any] | None = None
    heads: Collection[str] = ()
    everywhere: bool = False
    optional: bool = False

    @property
    def keys(self) -> Keys:
        kind = self.type or (type(next(iter(self.map))) if self.map else type_of(self.field))
        return {self.key: (kind | None if self.nullable or self.default is None else kind, self.default)}

    def read(self, file: Any, fields: Fields) -> Fields:
        if self.heads and not set(self.heads).intersection(fields["heads"]):
            return {}
        value = getattr(file, self.key)
        if self.map is not None:
            value = translate(self.key, value, self.map)
        return {self.field: value if self.load is None else self.load(value, fields)}

    def write(self, config: ModelConfig, explicit: ModelConfig) -> Fields:
        if self.heads and not self.everywhere and not set(self.heads).intersection(config.chosen_heads):
            return {}
        value = getattr(config if self.optional else explicit, self.field)
        if self.map is not None:
            value = name_of(value, self.map)
        return {self.key: value if self.save is None else self.save(value)}


@dataclass(frozen=True)
class Group:
    """Keys that set several fields together.

    load: (the values of all keys, the fields read so far) -> more fields. Raises SettingsError for contradictions.
    save: our config, with every default explicit -> the values of these keys. Raises SettingsError where they cannot
        represent the config.
    """

    keys: Keys
    load: Callable[[Any, Fields], Fields] = lambda file, fields: {}
    save: Callable[[ModelConfig], Fields] = lambda config: {}

    def read(self, file: Any, fields: Fields) -> Fields:
        return self.load(file, fields)

    def write(self, config: ModelConfig, explicit: ModelConfig) -> Fields:
        return self.save(explicit)


Entry: TypeAlias = Row | Group


def fixed(**values: bool | int | float | str) -> Group:
    """Keys that select parts which ModelConfig lacks: any other value is an error. They are not written."""
    keys: Keys = {}
    for key, value in values.items():
        only = Annotated[float, Field(ge=value, le=value)] if isinstance(value, float) else Literal[value]
        keys[key] = (only, value)
    return Group(keys)


def always(**values: object) -> Group:
    """Keys that are written with these values; reading them is up to other entries."""
    return Group({}, save=lambda config: values)


def revise(entries: Sequence[Entry], *new: Entry, without: str = "", **defaults: Any) -> tuple[Entry, ...]:
    """The entries of a related family with other defaults, without some keys, and with new entries, which replace
    those that have the same key.
    """
    dropped = {*without.split(), *(key for entry in new for key in entry.keys)}
    kept = [entry for entry in entries if not dropped.intersection(entry.keys)]
    changed = [
        replace(entry, default=defaults.pop(entry.key))
        if isinstance(entry, Row) and entry.key in defaults
        else entry
        for entry in kept
    ]
    assert not defaults, f"no rows for {', '.join(defaults)}"
    return (*changed, *new)


def type_of(name: str) -> Any:
    """The type of a field of ModelConfig with its bounds, without None."""
    info = ModelConfig.model_fields[name]
    plain = [part for part in get_args(info.annotation) if part is not NoneType]
    kind = plain[0] if len(plain) < len(get_args(info.annotation)) else info.annotation
    return Annotated[kind, *info.metadata] if info.metadata else kind


def up_to(largest: int) -> Any:
    """The type of sizes from 1 to a largest one, beyond any model in use."""
    return Annotated[int, Field(gt=0, le=largest)]


def same(name: str) -> Callable[[Fields], Any]:
    """A field's value that equals another field's."""
    return lambda fields: fields[name]


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


def translate(key: str, name: Any, table: Mapping[Any, Any]) -> Any:
    """Our value for a name of theirs. Raises SettingsError for an unknown name."""
    if name not in table:
        raise SettingsError(f"{key}: {name!r} is not known; known: {', '.join(map(str, table))}")
    return table[name]


def name_of(value: Any, table: Mapping[Any, Any]) -> Any:
    """The first of their names for a value of ours. Raises SettingsError if there is none."""
    for name, ours in table.items():
        if ours == value:
            return name
    raise SettingsError(f"{value!r} has no name there")


# --- special tokens ------------------------------------------------------------------------------------

Id = Annotated[int, Field(ge=0)]
ENDS = Id | Annotated[list[Id], Field(min_length=1)]  # of a family that needs one


def first_end(ends: int | list[int], fields: Fields) -> int:
    """The end that ModelConfig holds; the others belong to the generation settings."""
    return ends[0] if isinstance(ends, list) else ends


def ids(
    pad: int | None = None, bos: int | None = None, eos: int | None = None, *, padded: bool = False
) -> Group:
    """Special tokens with these defaults, each of which may be missing.

    No end is an id beyond the vocabulary. A missing beginning or padding is the end.

    padded: the padding must be in the vocabulary, because the reference gives its embedding no gradient, and no id
        may be negative. Otherwise -1 is a missing id, and padding equal to the end is written only where a head
        looks for it.
    """
    one = (Id if padded else int) | None

    def load(file: Any, fields: Fields) -> Fields:
        size, pad, bos, ends = fields["vocab_size"], file.pad_token_id, file.bos_token_id, file.eos_token_id
        end = ends[0] if isinstance(ends, list) and ends else ends
        eos = end if isinstance(end, int) and end >= 0 else size
        spare = eos if eos < size else 0
        if padded and pad is not None and pad >= size:
            raise SettingsError(f"pad_token_id: {pad} is outside the vocabulary of {size}")
        missing = [value is None or value < 0 for value in (pad, bos)]
        return {"pad_id": spare if missing[0] else pad, "bos_id": spare if missing[1] else bos, "eos_id": eos}

    def save(config: ModelConfig) -> Fields:
        said = padded or "sequence" in config.chosen_heads or config.pad_id != config.eos_id
        return {
            "pad_token_id": config.pad_id if said else None,
            "bos_token_id": config.bos_id,
            "eos_token_id": config.eos_id if config.eos_id < config.vocab_size else None,
        }

    keys = {
        "pad_token_id": (one, pad),
        "bos_token_id": (one, bos),
        "eos_token_id": (int | list[int] | None, eos),
    }
    return Group(keys, load, save)


# --- families ------------------------------------------------------------------------------------------

# Keys that the reference library writes and that do not change what the model computes. A family for which one of
# them does has an entry for it.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _name_or_path _num_labels architectures chunk_size_feed_forward dtype
    finetuning_task gradient_checkpointing id2label initializer_range is_decoder label2id model_type n_ctx n_special
    num_labels output_attentions output_hidden_states output_past predict_special_tokens prefix pretraining_tp
    problem_type pruned_heads return_dict task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers_version use_bfloat16 use_cache use_return_dict
    """.split()
)
LABELED: frozenset[Head] = frozenset({"sequence", "token"})  # heads with classes


@dataclass(frozen=True)
class Family:
    """How checkpoints of one `model_type` are read and written.

    stem: the beginning of their class names.
    classes: the rest of each class name -> the fields of ours that the class fixes, its heads among them. The first
        class is used where a file names none.
    entries: the keys of config.json, in the order in which they are read.
    constants: fields of ours with one value in this family. Values here and in `classes` may be functions of the
        fields that are read.
    rules: which of our parameters are which of their tensors.
    ignored: keys that change nothing, besides `HARMLESS`.
    n_labels: the number of classes where a file gives none.
    settle: corrects the config by the tensors, where config.json leaves something open.
    general: families are tried in this order for a config that was made here: 0, then 1 (fits configs that an older
        family fits too), then 2 (fits every config).
    """

    model_type: str
    stem: str
    classes: Mapping[str, Fields]
    entries: Sequence[Entry]
    constants: Fields
    rules: Callable[[ModelConfig], Sequence[AnyRule]]
    ignored: str = ""
    n_labels: int = 2
    settle: Callable[[ModelConfig, Mapping[str, Tensor]], ModelConfig] | None = None
    general: Literal[0, 1, 2] = 0

    @cached_property
    def architectures(self) -> dict[str, Fields]:
        """Their classes -> the fields of ours that are fixed."""
        return {self.stem + ending: self.constants | fields for ending, fields in self.classes.items()}

    @cached_property
    def keys(self) -> type[Settings]:
        """A settings class of all keys: it checks their types and fills in their defaults."""
        keys: Any = {key: value for entry in self.entries for key, value in entry.keys.items()}
        return create_model(f"{self.stem}Keys", __base__=Settings, **keys)

    def architecture(self, config: ModelConfig) -> str:
        """The class that has the config's heads. Raises StopIteration if there is none."""
        shape = ModelConfig.model_fields["shape"].default
        return next(
            name
            for name, fields in self.architectures.items()
            if (fields["heads"], fields.get("shape", shape)) == (config.chosen_heads, config.shape)
        )

    def read(self, values: Mapping[str, Any]) -> ModelConfig:
        """The content of a config.json as our config. Raises SettingsError for unknown and unsupported keys."""
        named = values.get("architectures") or [*self.architectures][:1]
        if not isinstance(named, list) or named[0] not in [*self.architectures]:
            known = ", ".join(self.architectures)
            raise SettingsError(f"architectures: {named!r} is not known; known: {known}")
        passed = HARMLESS | GENERATION_KEYS | set(self.ignored.split())
        file = self.keys.parse(
            {
                key: value
                for key, value in values.items()
                if key in self.keys.model_fields or (value is not None and key not in passed)
            }
        )
        constants = self.architectures[named[0]]
        fields = {name: value for name, value in constants.items() if not callable(value)}
        for entry in self.entries:
            fields |= entry.read(file, fields)
        fields |= {name: value(fields) for name, value in constants.items() if callable(value)}
        if LABELED.intersection(fields["heads"]):
            fields |= labels_to_ours(values, self.n_labels)
        return without_defaults(ModelConfig.parse(fields))

    def write(self, config: ModelConfig) -> Fields:
        """Our config as their keys, without `model_type` and `architectures`."""
        explicit = with_defaults(config)
        theirs: Fields = {}
        for entry in self.entries:
            theirs |= entry.write(config, explicit)
        return theirs | (labels_to_theirs(config) if LABELED.intersection(config.chosen_heads) else {})

    def fits(self, config: ModelConfig) -> bool:
        """Whether this family can represent the config: reading what it writes gives an equal config."""
        try:
            again = self.read({"architectures": [self.architecture(config)], **self.write(config)})
        except (SettingsError, StopIteration):
            return False
        # An end beyond the vocabulary is none, whatever its id.
        ends = [{"eos_id": min(one.eos_id, config.output_vocab_size)} for one in (config, again)]
        return with_defaults(config, **ends[0]) == with_defaults(again, **ends[1])


# What None stands for in a field of ModelConfig.
NONE_MEANS: dict[str, Callable[[ModelConfig], Any]] = {
    "n_decoder_layers": lambda config: config.n_layers,
    "n_decoder_heads": lambda config: config.n_heads,
    "n_kv_heads": lambda config: config.n_heads,
    "d_head": lambda config: None if config.d_model % config.n_heads else config.d_model // config.n_heads,
    "d_decoder_ff": lambda config: config.d_ff,
    "rotary_width": lambda config: config.head_width,
    "attention_out_bias": lambda config: config.attention_bias,
    "heads": lambda config: ("lm",) if config.decoder_layers else (),
    "label_names": lambda config: tuple(f"LABEL_{number}" for number in range(config.n_labels)),
    "pooler_width": lambda config: config.d_model,
    "embedding_dropout": lambda config: config.dropout,
    "classifier_dropout": lambda config: config.dropout,
    "decoder_start_id": lambda config: config.bos_id,
}


def with_defaults(config: ModelConfig, **more: Any) -> ModelConfig:
    """The config with the value in place of each None that stands for one, and with more values."""
    missing = [name for name in NONE_MEANS if getattr(config, name) is None]
    return config.model_copy(update={name: NONE_MEANS[name](config) for name in missing} | more)


def without_defaults(config: ModelConfig) -> ModelConfig:
    """The config with None in place of each value that None stands for, but for the dropout of a head."""
    table = NONE_MEANS.items()
    equal = [name for name, meaning in table if getattr(config, name) == meaning(config)]
    return config.model_copy(update=dict.fromkeys(name for name in equal if name != "classifier_dropout"))


# --- tensors -------------------------------------------------------------------------------------------

PART = "{part:weight|bias}"


def modules(
    names: Mapping[str, str], ours: str = "", theirs: str = "", matrix: Transform = SAME
) -> list[AnyRule]:
    """Rules for the weight and bias of each module (our name -> theirs) below the prefixes `ours` and `theirs`.

    matrix: the transform of weights that are not norms.
    """
    rules: list[AnyRule] = []
    for mine, name in names.items():
        if matrix is SAME or "_proj" not in mine:
            rules.append(Rule(f"{ours}{mine}.{PART}", f"{theirs}{name}.{{part}}"))
        else:
            rules.append(Rule(f"{ours}{mine}.weight", f"{theirs}{name}.weight", matrix))
            rules.append(Rule(f"{ours}{mine}.bias", f"{theirs}{name}.bias"))
    return rules


def below(config: ModelConfig, prefix: str) -> str:
    """The beginning of their names below the heads; a model without heads, or with a pooler only, has none."""
    return "" if config.chosen_heads in ((), ("pooler",)) else f"{prefix}."


def either_prefix(config: ModelConfig, prefix: str) -> Renamed:
    """Accept files that were saved with the prefix where it is not expected, or without it."""
    anything, base = "{*path}", below(config, prefix)
    return Renamed(anything, base + anything) if base else Renamed(f"{prefix}.{anything}", anything)


def ignored(theirs: str, names: str) -> list[AnyRule]:
    """Tensors, separated by spaces, that some files hold and that can be computed or belong to other classes."""
    return [Ignored(f"{theirs}{name}") for name in names.split()]
