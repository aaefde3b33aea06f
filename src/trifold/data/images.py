"""Image files to pixel arrays: orientation, channels, resizing, cropping, scaling and
normalization.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trifold.errors import DataError, TrifoldError
from trifold.folders import open_found, open_named
from trifold.installation import install_command
from trifold.settings import Settings

# Widely used formats, whose files have these suffixes; others are rejected before decoding.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# The places of standard input and of process substitution, which a user names.
STREAMS = tuple(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))
ANIMATED = "animated"  # counts images of several frames, among counts by mode and size
MAX_PIXELS = 10**8  # a small file may claim to hold more than fits into memory

Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


class ImageSettings(Settings):
    """Preprocessing of images; a step whose value is None is left out.

    A pixel p of 0 to 255 becomes (p · scale - mean) / deviation, per channel.
    """

    size: tuple[int, int] | None = Field(
        (224, 224), strict=False, description="height and width in pixels"
    )
    shortest_edge: int | None = Field(
        None, gt=0, description="instead of size: the shorter edge; the aspect ratio is kept"
    )
    longest_edge: int | None = Field(
        None, gt=0, description="with shortest_edge: limit of the longer edge"
    )
    crop: tuple[int, int] | None = Field(
        None,
        strict=False,
        description="height and width of the center crop; smaller images are padded with 0",
    )
    resample: Filter = "bilinear"
    scale: float | None = Field(1 / 255, gt=0)
    mean: tuple[float, ...] | None = Field(
        (0.5, 0.5, 0.5), strict=False, description="one value per channel"
    )
    deviation: tuple[float, ...] | None = Field((0.5, 0.5, 0.5), strict=False)

    @model_validator(mode="after")
    def _check_resizing(self) -> Self:
        if self.shortest_edge is not None and self.size is not None:
            raise ValueError(
                "size and shortest_edge contradict each other: set one of them to null"
            )
        shortest = self.shortest_edge
        longest = self.longest_edge
        if longest is not None and (shortest is None or longest < shortest):
            raise ValueError("longest_edge needs a shortest_edge that is not larger")
        return self

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width of every processed image; None if they depend on the image."""
        return self.crop or self.size

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image after resizing."""
        short = self.shortest_edge
        limit = self.longest_edge
        if short is None:
            return self.size or (height, width)
        exact = float(short)  # the shorter edge before rounding, from which the longer one follows
        low = min(height, width)
        high = max(height, width)
        if limit is not None and high / low * short > limit:  # the longer edge gets the limit
            exact = limit * float(low) / high
            short = round(exact)
        if low == short:
            return height, width
        longer = int(exact * high / low)
        return (longer, short) if width < height else (short, longer)


def read_image(
    image: Any,
    settings: ImageSettings,
    channels: int,
    name: str = "",
    kinds: Counter[Any] | None = None,
) -> NDArray[np.float32]:
    """Read a file, its bytes or a Pillow image as (channels, height, width) float32; `name` is its
    name in errors.

    kinds: counts images by mode, height and width, and those of several frames as ANIMATED.

    Raises DataError if it is missing, damaged, too large or not an image, TrifoldError if Pillow is
    not installed.
    """
    name = name or str(image)
    decoded = _decode(image, name, channels, Counter() if kinds is None else kinds)
    height, width = settings.resized(decoded.height, decoded.width)
    if settings.size is not None or settings.shortest_edge is not None:
        if not 1 <= height * width <= MAX_PIXELS:
            raise DataError(
                f"{name}: an image of {decoded.width:,} x {decoded.height:,} pixels is too "
                "narrow to be resized"
            )
        resampling = import_pillow()[0].Resampling[settings.resample.upper()]
        decoded = decoded.resize((width, height), resample=resampling)
    if settings.crop is not None:
        # If the difference is odd, the larger half is cut at the end, and padded at the start.
        top = (height - settings.crop[0]) // 2
        left = (width - settings.crop[1]) // 2
        decoded = decoded.crop((left, top, left + settings.crop[1], top + settings.crop[0]))
    pixels = np.asarray(decoded)
    pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return normalize(pixels, settings)


def normalize(pixels: NDArray[np.uint8], settings: ImageSettings) -> NDArray[np.float32]:
    """Pixels (channels, height, width), scaled and normalized."""
    with np.errstate(all="ignore"):  # the caller checks for infinite pixels
        scaled = pixels.astype(np.float64) * (1 if settings.scale is None else settings.scale)
        values = scaled.astype(np.float32)
        for constants, operation in ((settings.mean, np.subtract), (settings.deviation, np.divide)):
            if constants is not None and len(constants) not in (1, len(values)):
                raise DataError(
                    f"{len(constants)} means or deviations for {len(values)} channels: give one "
                    "per channel"
                )
            if constants is not None:
                values = operation(values, np.asarray(constants, dtype=np.float32)[:, None, None])
    return values


def _convert(decoded: Any, mode: str, name: str) -> Any:
    """The Pillow image in a mode. Raises DataError for colors that Pillow does not convert."""
    try:
        return decoded.convert(mode)
    except ValueError:
        raise DataError(
            f"{name}: pixels in {decoded.mode}, which cannot be converted to {mode}; save the "
            "image in RGB"
        ) from None


def _decode(image: Any, name: str, channels: int, kinds: Counter[Any]) -> Any:
    """The decoded Pillow image, upright and with the given number of channels."""
    mode = {1: "L", 3: "RGB"}.get(channels)
    if mode is None:
        raise DataError(
            f"{name}: the model reads images of {channels} channels, and image files have 1 or 3"
        )
    library, transpose = import_pillow()
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of large images, which are rejected below
            _open(image, library) as opened,
        ):
            if not isinstance(opened, library.Image):
                raise DataError(f"{name}: neither the path of a file nor a Pillow image")
            if opened.width * opened.height > MAX_PIXELS:
                raise DataError(
                    f"{name}: an image of {opened.width:,} x {opened.height:,} pixels is too "
                    f"large; the limit is {MAX_PIXELS:,} pixels"
                )
            upright = transpose(opened)
            kinds[upright.mode, upright.height, upright.width] += 1
            # Photos of phones (MPO) have a preview as their second frame.
            if getattr(opened, "n_frames", 1) > 1 and opened.format != "MPO":
                kinds[ANIMATED] += 1
            if upright.mode in ("I", "F") or upright.mode.startswith("I;16"):
                upright = library.fromarray(_bytes_of(np.asarray(upright), name))
            upright.load()
            return _convert(upright, mode, name)
    except FileNotFoundError:
        raise DataError(
            f"{name}: no such file; the inputs of an image model are paths of files"
        ) from None
    except library.UnidentifiedImageError:
        if _is_empty(image):
            raise DataError(f"{name}: the file is empty; copy it again, or remove it") from None
        raise DataError(f"{name}: not an image; supported formats: {', '.join(FORMATS)}") from None
    except library.DecompressionBombError:
        raise DataError(
            f"{name}: the image is too large; the limit is {MAX_PIXELS:,} pixels"
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # raised by the decoders
        raise DataError(f"{name}: damaged or truncated ({error}); copy the file again") from None


def _is_empty(image: Any) -> bool:
    """Whether a file, or the bytes of one, is empty."""
    if isinstance(image, BytesIO):
        return not image.getbuffer().nbytes
    return Path(image).expanduser().stat().st_size == 0


@contextmanager
def _open(image: Any, library: Any) -> Iterator[Any]:
    """The Pillow image of a file or of its bytes; other values as they are."""
    if isinstance(image, str | Path):
        # Without its name: Pillow maps a named TIFF with the sides of the upright image.
        path = Path(image).expanduser()
        opened = partial(open_found, path, DataError)
        if path.parent in STREAMS and path.is_fifo():
            opened = partial(open_named, path)
        with opened() as file:
            yield library.open(file, formats=FORMATS)
    else:
        yield library.open(image, formats=FORMATS) if isinstance(image, BytesIO) else image


def _bytes_of(pixels: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """The high bytes of pixels of 16 bits; wider ones as they are, which `convert` would clip.

    Raises DataError for wide pixels that are not whole numbers from 0 to 255.
    """
    if pixels.dtype.kind == "u":
        return (pixels >> 8).astype(np.uint8)
    with np.errstate(invalid="ignore"):  # of NaN, which is not equal to its byte
        as_bytes = pixels.astype(np.uint8)
    if not np.array_equal(as_bytes, pixels):
        low = pixels.min()
        high = pixels.max()
        raise DataError(
            f"{name}: pixels of 32 bits from {low:g} to {high:g}, whose black and white are not "
            "known; save the image with pixels of 8 bits (0 to 255) or 16 bits (0 to 65,535)"
        )
    return as_bytes


def import_pillow() -> tuple[Any, Any]:
    """The module PIL.Image, and the function that applies the EXIF orientation."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise TrifoldError(
            f"reading images needs Pillow; install it with `{install_command('vision')}`"
        ) from None
    return Image, ImageOps.exif_transpose
