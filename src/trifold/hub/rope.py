"""Rotary positions in config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` in older
files; layers that differ in their windows and positions.
"""

import math
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from trifold.errors import SettingsError
from trifold.hub.rows import POSITIVE, SIZE, Entry, Fields, Keys, group_of, solution
from trifold.nn import ModelConfig
from trifold.settings import Settings

THETA = 10_000.0
SHARE = "partial_rotary_factor"
LENGTH = "original_max_position_embeddings"
PART_OF_ONE = Annotated[float, Field(gt=0, le=1)]
RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


class RopeKeys(Settings):
    """The keys below `rope_parameters` or `rope_scaling`; others are sorted by `unknown_keys`."""

    model_config = ConfigDict(extra="ignore")

    rope_type: RopeType | None = None
    type: RopeType | None = None
    rope_theta: float | None = Field(None, gt=0)
    partial_rotary_factor: float | None = Field(None, gt=0, le=1)
    factor: float | None = Field(None, ge=1)
    original_max_position_embeddings: int | None = Field(None, gt=0)
    low_freq_factor: float | None = Field(None, gt=0)
    high_freq_factor: float | None = Field(None, gt=0)
    beta_fast: float | None = Field(None, gt=0)
    beta_slow: float | None = Field(None, gt=0)
    attention_factor: float | None = Field(None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None


# Kind of scaling -> the keys that only it has, and our fields.
SCALINGS: dict[str, dict[str, str]] = {
    "linear": {},
    "dynamic": {},
    "yarn": {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "round_bounds"},
    "llama3": {"low_freq_factor": "low_frequency", "high_freq_factor": "high_frequency"},
    "longrope": {"short_factor": "short_factors", "long_factor": "long_factors"},
}
MEASURED = ("linear", "dynamic")  # kinds that scale from `max_position_embeddings`
SCALED = ("yarn", "longrope")  # kinds with a magnitude, whose factor may follow from the lengths
REQUIRED = ("llama3", "longrope")  # kinds whose own keys have no defaults
GROUPS = dict.fromkeys(("rope_parameters", "rope_scaling"), frozenset(RopeKeys.model_fields))


def rope(
    *,
    part: str = "",
    theta: str = "rope_theta",
    base: float = THETA,
    share: float = 0.25,
    original: int | None = None,
    scaling: Fields | None = None,
    kinds: Collection[str] = SCALINGS,
) -> Entry:
    """The keys of rotary positions. The rows of sizes must be read before them.

    part: a family's own key of the share of a head that is rotated; families without it rotate
        whole heads. share: its default.
    theta: a family's own key of the base of the frequencies. base: its default.
    scaling: `rope_parameters` of files without it.
    original: the default of `original_max_position_embeddings` where the family always has this
        key.
    kinds: the kinds of scaling that the family has.
    """
    keys: Keys = {
        "rope_parameters": (RopeKeys | None, None),
        "rope_scaling": (RopeKeys | None, None),
        "rope_theta": (POSITIVE | None, None),
        SHARE: (PART_OF_ONE | None, None),
        # Takes precedence over the key of that name in `rope_parameters`.
        LENGTH: (SIZE | None, original),
    }
    if part:
        keys |= {part: (PART_OF_ONE | None, None), theta: (POSITIVE | None, None)}
    share_key = part or SHARE
    default_share = share if part else 1.0

    def load(file: Any, fields: Fields) -> Fields:
        place = rope_place(file)
        inner = getattr(file, place)
        if inner is None:
            inner = RopeKeys.parse(scaling or {})
        rotated = inner.partial_rotary_factor or getattr(file, share_key) or default_share
        used_base = inner.rope_theta or getattr(file, theta) or base
        if part:
            _check_agreement(file, {SHARE: rotated, "rope_theta": used_base})
        elif rotated != 1.0:
            key = f"{place}.{SHARE}" if inner.partial_rotary_factor else SHARE
            raise SettingsError(
                f"{key}: {rotated} is not supported; this family rotates whole heads"
            )
        _check_kind(inner, place, kinds)
        width = fields.get("d_head") or fields["d_model"] // fields["n_heads"]
        rotated_width = int(width * rotated)
        return {
            "positions": "rotary",
            "rotary_theta": float(used_base),
            "rotary_width": None if rotated_width == width else rotated_width,
            "rotary_scaling": _scaling(
                inner, fields["max_positions"], place, getattr(file, LENGTH)
            ),
        }

    def save(config: ModelConfig) -> Fields:
        inner: Fields = {"rope_type": "default", "rope_theta": config.rotary_theta}
        if part:
            rotated = config.rotated_width
            width = config.head_width
            inner[SHARE] = solution(rotated / width, lambda factor: int(factor * width), rotated)
        inner |= _scaling_keys(config)
        if original is None:
            return {"rope_parameters": inner}
        return {"rope_parameters": inner, LENGTH: inner.get(LENGTH, original)}

    return Entry(keys, load, save, groups=GROUPS)


def _check_agreement(file: Any, used: Fields) -> None:
    """Raise SettingsError for a common key whose value is not the one of a family's own key."""
    for key, value in used.items():
        given = getattr(file, key)
        if given not in (None, value):
            raise SettingsError(f"{key}: {given} contradicts {value}, the value of other keys")


def _check_kind(inner: RopeKeys, place: str, kinds: Collection[str]) -> None:
    """Raise SettingsError for a kind of scaling that the family does not have."""
    kind = inner.rope_type or inner.type
    if kind in (None, "default", *kinds):
        return
    known = ", ".join(("default", *kinds))
    key = "rope_type" if inner.rope_type else "type"
    raise SettingsError(f"{place}.{key}: {kind} is not supported; known: {known}")


def rope_place(file: Any) -> str:
    """The key that is read: `rope_scaling`, if it is not empty, takes precedence over
    `rope_parameters` as a whole.
    """
    if file.rope_scaling and file.rope_scaling.model_fields_set:
        return "rope_scaling"
    return "rope_parameters"


def layered_rope(
    base: float, local: float, theta: str = "rope_theta", local_theta: str = "rope_local_base_freq"
) -> Entry:
    """The keys of rotary positions where layers with a window have a base of their own, and no
    scaling.

    base, local: the defaults; theta, local_theta: their keys in older files, "" for none.
    """
    keys: Keys = {
        "rope_parameters": (dict[str, Any] | None, None),
        "rope_scaling": (RopeKeys | None, None),
        theta: (POSITIVE | None, None),
    }
    if local_theta:
        keys |= {local_theta: (POSITIVE | None, None)}

    def load(file: Any, fields: Fields) -> Fields:
        local_keys, global_keys, place = _keys_by_layer(file)
        scaling = _scaling(global_keys, fields["max_positions"], place)
        global_base = float(global_keys.rope_theta or getattr(file, theta) or base)
        local_base = float(local_keys.rope_theta or getattr(file, local_theta, None) or local)
        one_rotation = local_base == global_base and scaling is None
        return {
            "positions": "rotary",
            "rotary_theta": global_base,
            "rotary_scaling": scaling,
            "rotary_local_theta": None if one_rotation else local_base,
        }

    def save(config: ModelConfig) -> Fields:
        global_keys = {"rope_type": "default", "rope_theta": config.rotary_theta}
        global_keys |= _scaling_keys(config)
        local_keys = {
            "rope_type": "default",
            "rope_theta": config.rotary_local_theta or config.rotary_theta,
        }
        return {"rope_parameters": {"full_attention": global_keys, "sliding_attention": local_keys}}

    return Entry(keys, load, save, groups=GROUPS)


def _keys_by_layer(file: Any) -> tuple[RopeKeys, RopeKeys, str]:
    """The keys of layers with a window, those of the others, and the place of the latter.

    Keys of `rope_scaling` replace those of layers without a window. Raises SettingsError for keys
    outside both groups, for an old name of the kind, and for scaled layers with a window.
    """
    given = file.rope_parameters or {}
    scaling = file.rope_scaling or RopeKeys()
    if outside := given.keys() - LAYER_TYPES.keys():
        raise SettingsError(
            f"rope_parameters: needs {' and '.join(LAYER_TYPES)}; move {min(outside)} into them"
        )
    local_keys, global_keys = (
        RopeKeys.parse(given.get(kind) or {}, f"rope_parameters.{kind}") for kind in LAYER_TYPES
    )
    if scaling.type and not scaling.rope_type:  # `transformers` would not scale
        raise SettingsError(
            f"rope_scaling.type: {scaling.type!r} is not read by this family; name it rope_type"
        )
    if (kind := local_keys.rope_type or local_keys.type) not in (None, "default"):
        raise SettingsError(
            f"rope_parameters.sliding_attention.rope_type: {kind!r} is not supported; "
            "layers with a window are not scaled"
        )
    if not scaling.model_fields_set:
        return local_keys, global_keys, "rope_parameters.full_attention"
    global_keys = global_keys.model_copy(update=scaling.model_dump(exclude_unset=True))
    return local_keys, global_keys, "rope_scaling"


# Their types of layers -> ours; those with a window come first.
LAYER_TYPES = {"sliding_attention": "local", "full_attention": "global"}
KINDS = list[Literal["sliding_attention", "full_attention"]] | None


def windows(window: int, *, every: int) -> Entry:
    """`sliding_window`, by default `window`, and `layer_types`. The rows of sizes must be read
    before them.

    every: by default every n-th layer has no window, which `sliding_window_pattern` changes.
    """
    keys: Keys = {
        "sliding_window": (SIZE | None, window),
        "layer_types": (KINDS, None),
        "sliding_window_pattern": (SIZE | None, None),
    }

    def load(file: Any, fields: Fields) -> Fields:
        step = file.sliding_window_pattern or every
        return load_windows(file, fields, file.sliding_window, lambda n: (n + 1) % step != 0)

    def save(config: ModelConfig) -> Fields:
        return {
            "sliding_window": config.sliding_window or window,
            "layer_types": layer_types(config),
        }

    return Entry(keys, load, save)


def optional_windows(window: int | None, local: Callable[[Any, Fields, int], bool]) -> Entry:
    """`sliding_window`, by default `window`, and `layer_types`, where the window applies only with
    `use_sliding_window`. The rows of sizes must be read before them.

    local: (the values of all keys, the fields read so far, the number of a layer) -> whether the
    layer has a window by default.
    """
    keys: Keys = {
        "sliding_window": (SIZE | None, window),
        "layer_types": (KINDS, None),
        "use_sliding_window": (bool, False),
    }

    def load(file: Any, fields: Fields) -> Fields:
        used = file.sliding_window if file.use_sliding_window else None
        return load_windows(file, fields, used, lambda n: local(file, fields, n))

    def save(config: ModelConfig) -> Fields:
        return {
            "use_sliding_window": config.sliding_window is not None,
            "sliding_window": config.sliding_window,
            "layer_types": layer_types(config),
        }

    return Entry(keys, load, save)


def load_windows(
    file: Any, fields: Fields, window: int | None, local: Callable[[int], bool]
) -> Fields:
    """Our fields for `layer_types`, by default windows in layers that are `local`."""
    layers = fields["n_layers"]
    kinds = file.layer_types or [
        _layer_type(windowed=bool(window) and local(n)) for n in range(layers)
    ]
    if len(kinds) != layers:
        raise SettingsError(f"layer_types: has {len(kinds)} layers, but there are {layers}")
    if window is None and "sliding_attention" in kinds:
        needed = "use_sliding_window: true" if file.sliding_window else "sliding_window"
        raise SettingsError(f"layer_types: layers with a window need {needed}")
    return window_fields([LAYER_TYPES[kind] for kind in kinds], window)


def layer_types(config: ModelConfig) -> list[str]:
    """The value of `layer_types`."""
    return [_layer_type(windowed=bool(config.window(n))) for n in range(config.n_layers)]


def _layer_type(*, windowed: bool) -> str:
    if windowed:
        return "sliding_attention"
    return "full_attention"


def window_fields(layers: list[str], window: int | None) -> Fields:
    """Our fields of the windows of layers, each "local" or "global"."""
    if "local" not in layers:
        return {}
    return {"sliding_window": window, "window_pattern": repeated(layers)}


def repeated(layers: list[Any]) -> tuple[Any, ...]:
    """The shortest beginning that gives all layers when it is repeated, at last in part."""
    period = next(n for n in range(1, len(layers) + 1) if layers[n:] == layers[:-n])
    return tuple(layers[:period])


def _scaling(
    keys: RopeKeys, max_positions: int, place: str, outer: int | None = None
) -> Fields | None:
    """The values of our settings of scaling, None without scaling.

    place: the key that has `keys`. outer: the original length that a key beside it gives. Raises
    SettingsError for missing keys.
    """
    kind = keys.rope_type or keys.type or "default"
    if kind == "default":
        return None
    original = max_positions
    if kind not in MEASURED:
        original = outer or keys.original_max_position_embeddings or max_positions
    factor = keys.factor
    if factor is None:
        if kind not in SCALED:
            raise SettingsError(f"{place}.factor: rope_type {kind} needs one")
        factor = _factor_of_lengths(kind, max_positions, original)
    specific = {ours: getattr(keys, theirs) for theirs, ours in SCALINGS[kind].items()}
    if kind in REQUIRED and None in specific.values():
        raise SettingsError(f"{place}: rope_type {kind} needs {' and '.join(SCALINGS[kind])}")
    return {
        "kind": kind,
        "factor": float(factor),
        "original_positions": original,
        "magnitude": _magnitude(keys, kind, factor),
        **{name: value for name, value in specific.items() if value is not None},
    }


def _factor_of_lengths(kind: str, length: int, original: int) -> float:
    """The factor of scaling if a file gives none. In LongRoPE it only sets the magnitude."""
    factor = length / original
    if kind == "longrope":
        return max(1.0, factor)
    return factor


def _magnitude(keys: RopeKeys, kind: str, factor: float) -> float | None:
    """The factor of rotated vectors; None for a kind without one, and where it follows from the
    factor of scaling.
    """
    if kind not in SCALED:
        return None
    if kind == "longrope" or keys.attention_factor is not None:
        return keys.attention_factor
    if not keys.mscale or not keys.mscale_all_dim:
        return None
    log = math.log(factor) if factor > 1 else 0.0
    return (0.1 * keys.mscale * log + 1) / (0.1 * keys.mscale_all_dim * log + 1)


def _scaling_keys(config: ModelConfig) -> Fields:
    """The inverse of `_scaling`."""
    scaling = group_of(config, "rotary_scaling")
    if scaling is None:
        return {}
    keys: Fields = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind not in MEASURED:
        keys[LENGTH] = scaling.original_positions
    for theirs, ours in SCALINGS[scaling.kind].items():
        value = getattr(scaling, ours)
        keys[theirs] = list(value) if isinstance(value, tuple) else value
    if scaling.magnitude is not None:
        keys["attention_factor"] = scaling.magnitude
    return keys
