"""preprocessor_config.json: how the makers of a model turned pictures into numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trifold.data.pictures import Filter, PictureSettings
from trifold.errors import CheckpointError, SettingsError
from trifold.hub.files import read_json, write_json
from trifold.settings import Settings

FILE = "preprocessor_config.json"
LARGEST_SIDE = 10_000

# Pillow's numbers of its filters.
FILTERS: dict[int, Filter] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
# Keys that name the class or its library, or say what we do in any case.
HARMLESS = frozenset(
    """
    _processor_class crop_size data_format default_to_square device disable_grouping feature_extractor_type
    image_processor_type input_data_format pad_size processor_class return_tensors size_divisor
    """.split()
)


class PreprocessorFile(Settings):
    """Their keys, types and defaults (those of ViT); a field that allows one value is a step which we do not have."""

    do_resize: bool = True
    size: int | list[int] | dict[str, int] = 224
    resample: int = 2
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | list[float] = 0.5
    image_std: float | list[float] = 0.5
    do_convert_rgb: bool | None = None
    do_center_crop: Literal[False] = False
    do_pad: Literal[False] = False


def read_pictures(folder: Path) -> PictureSettings | None:
    """What the folder says of pictures; None where it says nothing.

    Raises CheckpointError for a key that is not known, or that asks for a step which we do not have.
    """
    place = folder / FILE
    if not place.is_file():
        return None
    values = read_json(place)
    given = {key: value for key, value in values.items() if value is not None and key not in HARMLESS}
    try:
        return _to_ours(PreprocessorFile.parse(given))
    except SettingsError as error:
        raise CheckpointError("\n".join(f"{place}: {line}" for line in str(error).splitlines())) from None


def write_pictures(folder: Path, settings: PictureSettings) -> None:
    """The way back of `read_pictures`."""
    theirs: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": settings.size is not None,
        "resample": next(number for number, name in FILTERS.items() if name == settings.resample),
        "do_rescale": settings.scale is not None,
        "do_normalize": settings.mean is not None or settings.deviation is not None,
    }
    if settings.size is not None:
        theirs["size"] = dict(zip(("height", "width"), settings.size, strict=True))
    if settings.scale is not None:
        theirs["rescale_factor"] = settings.scale
    if theirs["do_normalize"]:
        theirs["image_mean"] = list(settings.mean or (0.0,) * len(settings.deviation or ()))
        theirs["image_std"] = list(settings.deviation or (1.0,) * len(settings.mean or ()))
    write_json(folder / FILE, theirs)


def _to_ours(file: PreprocessorFile) -> PictureSettings:
    if file.resample not in FILTERS:
        raise SettingsError(f"resample: {file.resample} is not known; known: 0 to {max(FILTERS)}")
    if min(_colours(file.image_std), default=0) <= 0:
        raise SettingsError(f"image_std: {file.image_std} is no deviation: give numbers above 0")
    return PictureSettings.parse(
        {
            "size": _size(file.size) if file.do_resize else None,
            "resample": FILTERS[file.resample],
            "scale": file.rescale_factor if file.do_rescale else None,
            "mean": _colours(file.image_mean) if file.do_normalize else None,
            "deviation": _colours(file.image_std) if file.do_normalize else None,
        }
    )


def _size(size: int | list[int] | dict[str, int]) -> tuple[int, int]:
    """Height and width: a side, [height, width] or an object of both."""
    if isinstance(size, dict):
        if size.keys() != {"height", "width"}:
            raise SettingsError(f"size: {size} is not read; give height and width in pixels")
        size = [size["height"], size["width"]]
    sides = [size, size] if isinstance(size, int) else size
    if len(sides) != 2 or not 1 <= min(sides) <= max(sides) <= LARGEST_SIDE:
        raise SettingsError(f"size: {sides} is no height and width of 1 to {LARGEST_SIDE:,} pixels")
    return sides[0], sides[1]


def _colours(values: float | list[float]) -> tuple[float, ...]:
    return tuple(values) if isinstance(values, list) else (values,)
