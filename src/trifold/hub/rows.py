"""The rows of a family's table: keys of config.json and the fields of ModelConfig that they set, in
both directions.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field as with_default, replace
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.nn.config import Activation
from trifold.settings import Settings

Fields: TypeAlias = dict[str, Any]  # values of ModelConfig by field name
Keys: TypeAlias = dict[str, tuple[Any, Any]]  # their keys: (type, default)


@dataclass(frozen=True)
class Entry:
    """Keys of config.json that set fields of ModelConfig together.

    load: (the values of all keys, the fields read so far) -> more fields.
    save: our config -> the values of these keys.
    explicit: in the config that `save` gets, each None is replaced by the value that it stands for.
    groups: keys that hold keys of rotary positions, or such groups by type of layer -> these keys.

    Both raise SettingsError, for contradictions and for what the keys cannot represent.
    """

    keys: Keys
    load: Callable[[Any, Fields], Fields] = lambda file, fields: {}
    save: Callable[[ModelConfig], Fields] = lambda config: {}
    explicit: bool = True
    groups: Mapping[str, Collection[str]] = with_default(default_factory=dict)


def row(
    key: str,
    field: str,
    default: Any,
    *,
    kind: Any = None,
    nullable: bool = False,
    map: Mapping[Any, Any] | None = None,
    otherwise: Callable[[Fields], Any] | None = None,
    load: Callable[[Any, Fields], Any] = lambda value, fields: value,
    save: Callable[[Any], Any] = lambda value: value,
    heads: Collection[str] = (),
    everywhere: bool = False,
    explicit: bool = True,
) -> Entry:
    """One key that sets one field.

    kind: its type, by default that of our field; null is allowed where the default is None or with
        `nullable`.
    map: their values -> ours, by default for activations; the first of several equivalent names is
        written.
    otherwise: the fields read so far -> our value where theirs is null.
    load: (their value, the fields read so far) -> our value.
    save: our value -> theirs.
    heads: the key sets the field, and is written, only for models with one of these heads.
    everywhere: it is written for all models nevertheless. explicit: see `Entry`.
    """
    table = map
    if table is None and type_of(field) == Activation:
        table = ACTIVATIONS
    if kind is None:
        kind = type(next(iter(table))) if table else type_of(field)
    if nullable or default is None:
        kind = kind | None

    def read(file: Any, fields: Fields) -> Fields:
        if heads and not set(heads).intersection(fields["heads"]):
            return {}
        value = getattr(file, key)
        if value is None and otherwise is not None:
            return {field: otherwise(fields)}
        if table is not None:
            value = lookup(key, value, table)
        return {field: load(value, fields)}

    def write(config: ModelConfig) -> Fields:
        if heads and not everywhere and not set(heads).intersection(config.chosen_heads):
            return {}
        value = getattr(config, field)
        if table is not None:
            value = name_of(value, table)
        return {key: save(value)}

    return Entry({key: (kind, default)}, read, write, explicit)


def rows(**fields: Any) -> tuple[Entry, ...]:
    """Keys that set one field each: our field=(their key, its default), or the default of a key
    with our name.
    """
    entries: list[Entry] = []
    for field, value in fields.items():
        key, default = value if isinstance(value, tuple) else (field, value)
        entries.append(row(key, field, default))
    return tuple(entries)


def sizes(
    *, vocab: int, width: int, inner: int, layers: int, heads: int, positions: int, activation: str
) -> tuple[Entry, ...]:
    """The keys that most families have, with these defaults."""
    return (
        row("vocab_size", "vocab_size", vocab, kind=up_to(2**31)),
        *rows(d_model=("hidden_size", width), d_ff=("intermediate_size", inner)),
        *rows(n_layers=("num_hidden_layers", layers), n_heads=("num_attention_heads", heads)),
        *rows(
            max_positions=("max_position_embeddings", positions),
            activation=("hidden_act", activation),
        ),
    )


# Their keys by the names of the arguments of `sizes`.
SIZE_KEYS = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "inner": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "positions": "max_position_embeddings",
}


def resized(**values: Any) -> Fields:
    """Other defaults for `revise`: of the keys of `sizes` by the names of its arguments, and of
    further keys.
    """
    return {SIZE_KEYS.get(name, name): value for name, value in values.items()}


def repeats(key: str, other: str, default: int | None = None, times: str = "") -> Entry:
    """A key that must be null or have the value of the key `other`, after a multiplication by that
    of the key `times`, if one is named. It is not written.
    """

    def check(file: Any, fields: Fields) -> Fields:
        value = getattr(file, key)
        expected = getattr(file, other)
        factor = getattr(file, times) if times else 1
        if value is not None and value * factor != expected:
            raise SettingsError(f"{key}: {value} contradicts {other} {expected}")
        return {}

    return Entry({key: (int | None, default)}, check)


def nested(field: str, switch: str = "", **values: Any) -> Entry:
    """Keys that set the values of a part of the model, such as its experts, which the config must
    have.

    values: each value of the part as (their key, its default), or a constant.
    switch: the part may be missing; this one of the keys is positive where it exists.
    """
    part: type[Settings] = type_of(field)
    keyed = {inner: value for inner, value in values.items() if isinstance(value, tuple)}
    constants = {inner: value for inner, value in values.items() if inner not in keyed}

    def read(file: Any, fields: Fields) -> Fields:
        if switch and getattr(file, switch) <= 0:
            return {}
        return {field: {inner: getattr(file, key) for inner, (key, _) in keyed.items()} | constants}

    def write(config: ModelConfig) -> Fields:
        group = group_of(config, field)
        if group is None and not switch:
            raise SettingsError(f"{field}: missing in the config, and this family requires it")
        if group is None:
            return {}
        return {key: getattr(group, inner) for inner, (key, _) in keyed.items()}

    kinds: dict[str, Any] = dict.fromkeys(keyed, Any)
    if hasattr(part, "model_fields"):  # the package has the variant
        infos = {inner: part.model_fields[inner] for inner in keyed}
        kinds |= {inner: _bounded(info.annotation, info.metadata) for inner, info in infos.items()}
    # Without bounds: where the part is missing, its switch is not positive.
    kinds |= {inner: int for inner, (key, _) in keyed.items() if key == switch}
    return Entry(
        {key: (kinds[inner], default) for inner, (key, default) in keyed.items()}, read, write
    )


def fixed(**values: bool | int | float | str) -> Entry:
    """Keys that select parts which ModelConfig lacks: any other value is an error. They are not
    written.
    """
    return Entry({key: (Literal[value], value) for key, value in values.items()})


def revise(
    entries: Sequence[Entry], *new: Entry, without: str = "", **defaults: Any
) -> tuple[Entry, ...]:
    """The entries of a related family with other defaults, without some keys, and with new entries,
    which replace those that have the same key.
    """
    dropped = {*without.split(), *(key for entry in new for key in entry.keys)}
    kept = []
    for entry in entries:
        if not dropped.intersection(entry.keys):
            keys = {
                key: (kind, defaults.pop(key, default))
                for key, (kind, default) in entry.keys.items()
            }
            kept.append(replace(entry, keys=keys))
    assert not defaults, f"no entries for {', '.join(defaults)}"
    return (*kept, *new)


def group_of(config: ModelConfig, key: str) -> Any:
    """The settings of a variant; None if the config has none, or the package lacks the variant."""
    return getattr(config, key, None)


def type_of(name: str) -> Any:
    """The type of a field of ModelConfig with its bounds, without None; any for the settings of a
    variant that the package lacks, whose families cannot be read.
    """
    info = ModelConfig.model_fields.get(name)
    if info is None:
        return Any
    parts = get_args(info.annotation)
    kind = parts[0] if NoneType in parts else info.annotation
    return _bounded(kind, info.metadata)


def _bounded(kind: Any, bounds: Sequence[Any]) -> Any:
    if not bounds:
        return kind
    return Annotated[kind, *bounds]


SIZE = Annotated[int, Field(gt=0)]
POSITIVE = Annotated[float, Field(gt=0)]


def up_to(largest: int) -> Any:
    """The type of an integer from 1 to `largest`, a bound beyond any model in use."""
    return Annotated[int, Field(gt=0, le=largest)]


def same(name: str) -> Callable[[Fields], Any]:
    """A function of the fields read so far that returns one of them."""
    return lambda fields: fields[name]


def solution(guess: float, function: Callable[[float], float], value: float) -> float:
    """The number near `guess` of which the function is exactly `value`, a short one if there is
    one.
    """
    near = (
        float(f"{guess:.9g}"),
        guess,
        math.nextafter(guess, math.inf),
        math.nextafter(guess, -math.inf),
    )
    return next((number for number in near if function(number) == value), guess)


# Theirs -> ours; the first of several names is the one that is written.
ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
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


def lookup(key: str, name: Any, table: Mapping[Any, Any] = ACTIVATIONS) -> Any:
    """Our value for a name of theirs. Raises SettingsError for an unknown name."""
    if name not in table:
        raise SettingsError(f"{key}: {name!r} is not known; known: {', '.join(map(str, table))}")
    return table[name]


def name_of(value: Any, table: Mapping[Any, Any] = ACTIVATIONS) -> Any:
    """The first of their names for a value of ours. Raises SettingsError if there is none."""
    for name, ours in table.items():
        if ours == value:
            return name
    raise SettingsError(f"{value!r} has no name there")


# --- special tokens -------------------------------------------------------------------------------

Id = Annotated[int, Field(ge=0)]
Ends = Id | Annotated[list[Id], Field(min_length=1)]


def end(default: int) -> Entry:
    """The end token of a family that requires one. Of several, ModelConfig has the first; see
    `read_generation`.
    """
    return row(
        "eos_token_id", "eos_id", default, kind=Ends, load=lambda value, fields: first_id(value)
    )


def first_id(ends: int | list[int] | None) -> int | None:
    """The first of several end tokens; None if there are none."""
    if isinstance(ends, list):
        return next(iter(ends), None)
    return ends


def _id_or(token: int | None, other: int) -> int:
    """The id of a token, or `other` for a missing one, which is null or negative."""
    if token is None or token < 0:
        return other
    return token


def ids(
    pad: int | None = None, bos: int | None = None, eos: int | None = None, *, padded: bool = False
) -> Entry:
    """Special tokens with these defaults.

    A missing end token gets an id beyond the vocabulary; any other missing token gets the id of the
    end token.

    padded: no id is negative, and the padding is in the vocabulary, because `transformers` gives
        its embedding no gradient. Otherwise -1 is a missing id, and padding equal to the end is
        written only where a head needs it.
    """
    one = (Id if padded else int) | None
    ends = int | list[int] | None

    def load(file: Any, fields: Fields) -> Fields:
        size = fields["vocab_size"]
        pad = file.pad_token_id
        if padded and pad is not None and pad >= size:
            raise SettingsError(f"pad_token_id: {pad} is outside the vocabulary of {size}")
        eos = _id_or(first_id(file.eos_token_id), size)
        spare = eos if eos < size else 0
        if pad is not None and pad >= size:  # a token of the tokenizer that the model never reads
            pad = None
        return {
            "pad_id": _id_or(pad, spare),
            "bos_id": _id_or(file.bos_token_id, spare),
            "eos_id": eos,
        }

    def save(config: ModelConfig) -> Fields:
        keys: Fields = {
            "pad_token_id": config.pad_id,
            "bos_token_id": config.bos_id,
            "eos_token_id": config.eos_id,
        }
        needs_padding = padded or "sequence" in config.chosen_heads
        if config.pad_id == config.eos_id and not needs_padding:
            keys["pad_token_id"] = None
        if config.eos_id >= config.vocab_size:
            keys["eos_token_id"] = None
        return keys

    keys = {"pad_token_id": (one, pad), "bos_token_id": (one, bos), "eos_token_id": (ends, eos)}
    return Entry(keys, load, save)
