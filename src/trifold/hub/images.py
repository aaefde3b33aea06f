"""Read and write preprocessor_config.json: how a model's images are resized, cropped and
normalized.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trifold.data.images import Filter, ImageSettings
from trifold.errors import SettingsError
from trifold.folders import AnyPath, named
from trifold.hub.files import naming, write_json
from trifold.jsonfiles import read_json
from trifold.settings import Settings

FILE = "preprocessor_config.json"
MAX_SIDE = 10_000

# In the order of Pillow's filter numbers.
FILTERS: tuple[Filter, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
# Keys that name the class or its library, or describe what we always do.
HARMLESS = """
    _processor_class data_format device disable_grouping feature_extractor_type image_processor_type
    input_data_format pad_size processor_class return_tensors size_divisor
""".split()
Size = int | list[int] | dict[str, int | None]


class PreprocessorFile(Settings):
    """The keys with their types and defaults (those of ViT); a field with one allowed value is an
    unsupported step.
    """

    do_resize: bool = True
    size: Size = 224
    default_to_square: bool = True  # a single number is both sides, or else the shorter one
    resample: int = 2
    do_rescale: bool = True
    rescale_factor: float = Field(1 / 255, gt=0)
    do_normalize: bool = True
    image_mean: float | list[float] = 0.5
    image_std: float | list[float] = 0.5
    do_convert_rgb: bool | None = None
    do_center_crop: bool = False
    crop_size: Size | None = None
    do_pad: Literal[False] = False


def read_image_settings(folder: AnyPath) -> ImageSettings | None:
    """The image settings of a folder; None if it has none. Raises CheckpointError for an unknown or
    unsupported key.
    """
    place = named(folder) / FILE
    if not place.exists():
        return None
    values = read_json(place)
    given = {
        key: value for key, value in values.items() if value is not None and key not in HARMLESS
    }
    with naming(place):
        return _to_ours(PreprocessorFile.parse(given))


def write_image_settings(folder: Path, settings: ImageSettings) -> None:
    """Write the inverse of `read_image_settings`."""
    theirs: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": settings.size is not None or settings.shortest_edge is not None,
        "resample": FILTERS.index(settings.resample),
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
    if not 0 <= file.resample < len(FILTERS):
        raise SettingsError(
            f"resample: {file.resample} is not known; known: 0 to {len(FILTERS) - 1}"
        )
    if min(_channels(file.image_std), default=0) <= 0:
        raise SettingsError(
            f"image_std: {file.image_std} is not a standard deviation: give numbers above 0"
        )
    if file.do_center_crop and file.crop_size is None:
        raise SettingsError("crop_size: do_center_crop needs one; give height and width in pixels")
    fields: dict[str, Any] = {
        **dict.fromkeys(("size", "crop", "scale", "mean", "deviation")),
        "resample": FILTERS[file.resample],
    }
    if file.do_resize:
        fields |= _resizing(file)
    if file.do_center_crop:
        fields["crop"] = height_and_width("crop_size", file.crop_size)
    if file.do_rescale:
        fields["scale"] = file.rescale_factor
    if file.do_normalize:
        fields["mean"] = _channels(file.image_mean)
        fields["deviation"] = _channels(file.image_std)
    return ImageSettings.parse(fields)


def _resizing(file: PreprocessorFile) -> dict[str, Any]:
    """`size`, or the shortest edge, which keeps the aspect ratio."""
    size = file.size
    if isinstance(size, int) and not file.default_to_square:
        size = {"shortest_edge": size}
    if isinstance(size, dict) and size.get("shortest_edge") is not None:
        edges = {edge: side for edge, side in size.items() if side is not None}
        if edges.keys() <= {"shortest_edge", "longest_edge"}:
            if not 1 <= min(edges.values()) <= max(edges.values()) <= MAX_SIDE:
                raise SettingsError(f"size: {edges} are not sides of 1 to {MAX_SIDE:,} pixels")
            return {"size": None, **edges}
    return {"size": height_and_width("size", size)}


def height_and_width(key: str, size: Any) -> tuple[int, int]:
    """Height and width: a side, [height, width] or an object of both. Raises SettingsError for
    others.
    """
    if isinstance(size, dict):
        given = {edge: side for edge, side in size.items() if side is not None}
        if given.keys() != {"height", "width"}:
            raise SettingsError(f"{key}: {size} is not supported; give height and width in pixels")
        size = [given["height"], given["width"]]
    sides = [size, size] if isinstance(size, int) else size
    if len(sides) != 2 or not 1 <= min(sides) <= max(sides) <= MAX_SIDE:
        limits = f"of 1 to {MAX_SIDE:,} pixels"
        raise SettingsError(f"{key}: {size} is neither a side nor [height, width] {limits}")
    return sides[0], sides[1]


def _sides(size: tuple[int, int]) -> dict[str, int]:
    return dict(zip(("height", "width"), size, strict=True))


def _channels(values: float | list[float]) -> tuple[float, ...]:
    if isinstance(values, list):
        return tuple(values)
    return (values,)
