"""Rotary positions in config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` in older
files; layers that differ in their windows and positions.
"""

import math
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.rows import POSITIVE, SIZE, Entry, Fields, Keys, group_of, solution
from trifold.nn import ModelConfig
from trifold.settings import Settings

THETA = 10_000.0
RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


class RopeKeys(Settings):
    """The keys below `rope_parameters` or `rope_scaling`."""

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

    part, theta: a family's own keys of the rotated share of a head, and of the base; share, base:
    their defaults. Families without `part` rotate whole heads. scaling: `rope_parameters` of files
    without it. original: the default of `original_max_position_embeddings` where the family always
    has this key. kinds: of scaling, that the family has.
    """
    part_of_one = Annotated[float, Field(gt=0, le=1)]
    keys: Keys = {
        "rope_parameters": (RopeKeys | None, None),
        "rope_scaling": (RopeKeys | None, None),
        "rope_theta": (POSITIVE | None, None),
        "partial_rotary_factor": (part_of_one | None, None),
        # Takes precedence over the key of that name in `rope_parameters`.
        "original_max_position_embeddings": (SIZE | None, original),
    }
    if part:
        keys |= {part: (part_of_one | None, None), theta: (POSITIVE | None, None)}

    def load(file: Any, fields: Fields) -> Fields:
        default = scaling if file.rope_parameters is None else None
        place = rope_place(file)
        inner = getattr(file, place) or RopeKeys.parse(default or {})
        rotated = inner.partial_rotary_factor or getattr(file, part or "partial_rotary_factor")
        rotated = rotated or (share if part else 1.0)
        used_base = inner.rope_theta or getattr(file, theta) or base
        if not part and rotated != 1.0:
            key = f"{place}." * bool(inner.partial_rotary_factor) + "partial_rotary_factor"
            raise SettingsError(
                f"{key}: {rotated} is not supported; this family rotates whole heads"
            )
        for key, used in {"partial_rotary_factor": rotated, "rope_theta": used_base}.items():
            if part and (value := getattr(file, key)) not in (None, used):
                raise SettingsError(f"{key}: {value} contradicts {used}, the value of other keys")
        kind = inner.rope_type or inner.type
        if kind not in (None, "default", *kinds):
            known = ", ".join(("default", *kinds))
            key = "rope_type" if inner.rope_type else "type"
            raise SettingsError(f"{place}.{key}: {kind} is not supported; known: {known}")
        width = fields.get("d_head") or fields["d_model"] // fields["n_heads"]
        return {
            "positions": "rotary",
            "rotary_theta": float(used_base),
            "rotary_width": None if int(width * rotated) == width else int(width * rotated),
            "rotary_scaling": _scaling(
                inner, fields["max_positions"], place, file.original_max_position_embeddings
            ),
        }

    def save(config: ModelConfig) -> Fields:
        inner: Fields = {"rope_type": "default", "rope_theta": config.rotary_theta}
        if part:
            rotated = config.rotated_width
            width = config.head_width
            inner["partial_rotary_factor"] = solution(
                rotated / width, lambda f: int(f * width), rotated
            )
        inner |= _keys(config)
        outer = "original_max_position_embeddings"
        return {"rope_parameters": inner} | (
            {outer: inner.get(outer, original)} if original else {}
        )

    return Entry(keys, load, save)


def rope_place(file: Any) -> str:
    """The key that is read: `rope_scaling`, if it is not empty, takes precedence over
    `rope_parameters` as a whole.
    """
    return (
        "rope_scaling"
        if file.rope_scaling and file.rope_scaling.model_fields_set
        else "rope_parameters"
    )


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
        given = file.rope_parameters or {}
        more = file.rope_scaling or RopeKeys()
        if other := given.keys() - LAYER_TYPES.keys():
            raise SettingsError(
                f"rope_parameters: needs {' and '.join(LAYER_TYPES)}; move {min(other)} into them"
            )
        near, whole = (
            RopeKeys.parse(given.get(kind) or {}, f"rope_parameters.{kind}") for kind in LAYER_TYPES
        )
        if more.type and not more.rope_type:  # `transformers` would not scale
            raise SettingsError(
                f"rope_scaling.type: {more.type!r} is not read by this family; name it rope_type"
            )
        whole = whole.model_copy(update=more.model_dump(exclude_unset=True))
        if (kind := near.rope_type or near.type) not in (None, "default"):
            raise SettingsError(
                f"rope_parameters.sliding_attention.rope_type: {kind!r} is not supported; "
                "layers with a window are "
                "not scaled"
            )
        place = "rope_scaling" if more.model_fields_set else "rope_parameters.full_attention"
        scaling = _scaling(whole, fields["max_positions"], place)
        own = float(whole.rope_theta or getattr(file, theta) or base)
        other = float(near.rope_theta or getattr(file, local_theta, None) or local)
        return {
            "positions": "rotary",
            "rotary_theta": own,
            "rotary_scaling": scaling,
            "rotary_local_theta": other if other != own or scaling is not None else None,
        }

    def save(config: ModelConfig) -> Fields:
        whole = {"rope_type": "default", "rope_theta": config.rotary_theta} | _keys(config)
        near = {
            "rope_type": "default",
            "rope_theta": config.rotary_local_theta or config.rotary_theta,
        }
        return {"rope_parameters": {"full_attention": whole, "sliding_attention": near}}

    return Entry(keys, load, save)


LAYER_TYPES = {"sliding_attention": "local", "full_attention": "global"}
KINDS = list[Literal["sliding_attention", "full_attention"]] | None


def windows(
    window: int | None, *, every: int = 0, local: Callable[[Any, Fields, int], bool] | None = None
) -> Entry:
    """`sliding_window`, by default `window`, and `layer_types`. The rows of sizes must be read
    before them.

    every: by default every n-th layer has no window, which `sliding_window_pattern` changes.
    local: (the values of all keys, the fields read so far, the number of a layer) -> whether the
    layer has a window by default; the window then applies only with `use_sliding_window`.
    """
    keys: Keys = {"sliding_window": (SIZE | None, window), "layer_types": (KINDS, None)}
    own: Keys = (
        {"use_sliding_window": (bool, False)}
        if local
        else {"sliding_window_pattern": (SIZE | None, None)}
    )

    def load(file: Any, fields: Fields) -> Fields:
        if local is not None:
            used = file.sliding_window if file.use_sliding_window else None
            return load_windows(file, fields, used, lambda n: local(file, fields, n))
        step = file.sliding_window_pattern or every
        return load_windows(file, fields, file.sliding_window, lambda n: (n + 1) % step != 0)

    def save(config: ModelConfig) -> Fields:
        used = config.sliding_window
        kinds = layer_types(config)
        if local is not None:
            return {
                "use_sliding_window": used is not None,
                "sliding_window": used,
                "layer_types": kinds,
            }
        return {"sliding_window": used or window, "layer_types": kinds}

    return Entry(keys | own, load, save)


def load_windows(
    file: Any, fields: Fields, window: int | None, local: Callable[[int], bool]
) -> Fields:
    """Our fields for `layer_types`, by default windows in layers that are `local`."""
    layers = fields["n_layers"]
    default = (
        "sliding_attention" if window and local(n) else "full_attention" for n in range(layers)
    )
    found = file.layer_types or [*default]
    if len(found) != layers:
        raise SettingsError(f"layer_types: has {len(found)} layers, but there are {layers}")
    if window is None and "sliding_attention" in found:
        needed = "use_sliding_window: true" if file.sliding_window else "sliding_window"
        raise SettingsError(f"layer_types: layers with a window need {needed}")
    return window_fields([LAYER_TYPES[kind] for kind in found], window)


def layer_types(config: ModelConfig) -> list[str]:
    """The value of `layer_types`."""
    return [
        "sliding_attention" if config.window(n) else "full_attention"
        for n in range(config.n_layers)
    ]


def window_fields(layers: list[str], window: int | None) -> Fields:
    """Our fields of the windows of layers, each "local" or "global"."""
    return (
        {"sliding_window": window, "window_pattern": repeated(layers)} if "local" in layers else {}
    )


def repeated(layers: list[Any]) -> tuple[Any, ...]:
    """The shortest beginning that gives all layers when it is repeated."""
    return tuple(layers[: next(n for n in range(1, len(layers) + 1) if layers[n:] == layers[:-n])])


def _scaling(
    keys: RopeKeys, max_positions: int, place: str, outer: int | None = None
) -> Fields | None:
    kind = keys.rope_type or keys.type or "default"
    if kind == "default":
        return None
    original = outer or keys.original_max_position_embeddings or max_positions
    factor = keys.factor
    if factor is None:
        if kind not in SCALED:
            raise SettingsError(f"{place}.factor: rope_type {kind} needs one")
        factor = max_positions / original
        factor = (
            max(1.0, factor) if kind == "longrope" else factor
        )  # there it only sets the magnitude
    own = {ours: getattr(keys, theirs) for theirs, ours in SCALINGS[kind].items()}
    if kind in REQUIRED and None in own.values():
        raise SettingsError(f"{place}: rope_type {kind} needs {' and '.join(SCALINGS[kind])}")
    magnitude = keys.attention_factor
    if kind == "yarn" and magnitude is None and keys.mscale and keys.mscale_all_dim:
        log = math.log(factor) if factor > 1 else 0.0
        magnitude = (0.1 * keys.mscale * log + 1) / (0.1 * keys.mscale_all_dim * log + 1)
    return {
        "kind": kind,
        "factor": float(factor),
        "original_positions": max_positions if kind in MEASURED else original,
        "magnitude": magnitude if kind in SCALED else None,
        **{name: value for name, value in own.items() if value is not None},
    }


def _keys(config: ModelConfig) -> Fields:
    """The inverse of `_scaling`."""
    scaling = group_of(config, "rotary_scaling")
    if scaling is None:
        return {}
    keys: Fields = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind not in MEASURED:
        keys["original_max_position_embeddings"] = scaling.original_positions
    for theirs, ours in SCALINGS[scaling.kind].items():
        value = getattr(scaling, ours)
        keys[theirs] = list(value) if isinstance(value, tuple) else value
    return keys if scaling.magnitude is None else keys | {"attention_factor": scaling.magnitude}
