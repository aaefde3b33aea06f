"""preprocessor_config.json: how the makers of a model turned pictures into numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trifold.data.images import Filter, ImageSettings
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
    _processor_class data_format device disable_grouping feature_extractor_type image_processor_type
    input_data_format pad_size processor_class return_tensors size_divisor
    """.split()
)


Size = int | list[int] | dict[str, int | None]


class PreprocessorFile(Settings):
    """Their keys, types and defaults (those of ViT); a field that allows one value is a step which we do not have."""

    do_resize: bool = True
    size: Size = 224
    default_to_square: bool = True  # a size that is one number is both sides, or else the shorter one
    resample: int = 2
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | list[float] = 0.5
    image_std: float | list[float] = 0.5
    do_convert_rgb: bool | None = None
    do_center_crop: bool = False
    crop_size: Size | None = None
    do_pad: Literal[False] = False


def read_pictures(folder: Path) -> ImageSettings | None:
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


def write_pictures(folder: Path, settings: ImageSettings) -> None:
    """The way back of `read_pictures`."""
    theirs: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": settings.size is not None or settings.shortest_edge is not None,
        "resample": next(number for number, name in FILTERS.items() if name == settings.resample),
        "do_rescale": settings.scale is not None,
        "do_normalize": settings.mean is not None or settings.deviation is not None,
    }
    if settings.size is not None:
        theirs["size"] = _sides(settings.size)
    elif settings.shortest_edge is not None:
        edges = {"shortest_edge": settings.shortest_edge, "longest_edge": settings.longest_edge}
        theirs["size"] = {edge: pixels for edge, pixels in edges.items() if pixels is not None}
    if settings.crop is not None:
        theirs |= {"do_center_crop": True, "crop_size": _sides(settings.crop)}
    if settings.scale is not None:
        theirs["rescale_factor"] = settings.scale
    if theirs["do_normalize"]:
        theirs["image_mean"] = list(settings.mean or (0.0,) * len(settings.deviation or ()))
        theirs["image_std"] = list(settings.deviation or (1.0,) * len(settings.mean or ()))
    write_json(folder / FILE, theirs)


def _to_ours(file: PreprocessorFile) -> ImageSettings:
    if file.resample not in FILTERS:
        raise SettingsError(f"resample: {file.resample} is not known; known: 0 to {max(FILTERS)}")
    if min(_colours(file.image_std), default=0) <= 0:
        raise SettingsError(f"image_std: {file.image_std} is no deviation: give numbers above 0")
    return ImageSettings.parse(
        {
            **(_resizing(file) if file.do_resize else {"size": None}),
            "crop": _crop(file),
            "resample": FILTERS[file.resample],
            "scale": file.rescale_factor if file.do_rescale else None,
            "mean": _colours(file.image_mean) if file.do_normalize else None,
            "deviation": _colours(file.image_std) if file.do_normalize else None,
        }
    )


def _resizing(file: PreprocessorFile) -> dict[str, Any]:
    """`size`, or the edge that keeps a picture's proportion."""
    said = file.size
    if isinstance(said, int) and not file.default_to_square:
        said = {"shortest_edge": said}
    if isinstance(said, dict) and said.get("shortest_edge") is not None:
        edges = {edge: side for edge, side in said.items() if side is not None}
        if edges.keys() <= {"shortest_edge", "longest_edge"}:
            _pixels("size", *edges.values())
            return {"size": None, **edges}
    return {"size": _size("size", said)}


def _crop(file: PreprocessorFile) -> tuple[int, int] | None:
    if not file.do_center_crop:
        return None
    if file.crop_size is None:
        raise SettingsError("crop_size: do_center_crop needs one; give height and width in pixels")
    return _size("crop_size", file.crop_size)


def _size(key: str, size: Any) -> tuple[int, int]:
    """Height and width: a side, [height, width] or an object of both."""
    if isinstance(size, dict):
        said = {edge: side for edge, side in size.items() if side is not None}
        if said.keys() != {"height", "width"}:
            raise SettingsError(f"{key}: {size} is not read; give height and width in pixels")
        size = [said["height"], said["width"]]
    sides = [size, size] if isinstance(size, int) else size
    if len(sides) != 2:
        raise SettingsError(f"{key}: {sides} is no height and width")
    _pixels(key, *sides)
    return sides[0], sides[1]


def _pixels(key: str, *sides: int) -> None:
    if not 1 <= min(sides) <= max(sides) <= LARGEST_SIDE:
        raise SettingsError(f"{key}: {list(sides)} are no sides of 1 to {LARGEST_SIDE:,} pixels")


def _sides(size: tuple[int, int]) -> dict[str, int]:
    return dict(zip(("height", "width"), size, strict=True))


def _colours(values: float | list[float]) -> tuple[float, ...]:
    return tuple(values) if isinstance(values, list) else (values,)
