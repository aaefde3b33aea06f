"""Picture files to numbers, as the model's makers did it: upright, in colour, resized, cropped, scaled, normalised."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trifold.errors import DataError, TrifoldError
from trifold.settings import Settings

HOW_TO_GET_PILLOW = "reading pictures needs Pillow: pip install 'trifold[vision]'"
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # decoders that see much use; any other is refused unread
MOST_PIXELS = 10**8  # a small file may claim to hold more than memory does

Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


class PictureSettings(Settings):
    """How a picture becomes numbers; a step whose value is None is left out.

    A pixel p of 0 to 255 becomes (p · scale - mean) / deviation, colour by colour.
    """

    size: tuple[int, int] | None = Field((224, 224), strict=False, description="height and width in pixels")
    shortest_edge: int | None = Field(
        None, gt=0, description="… or the shorter of them; the other keeps the proportion"
    )
    longest_edge: int | None = Field(None, gt=0, description="… and what the longer may be at most")
    crop: tuple[int, int] | None = Field(
        None, strict=False, description="height and width that are kept, of the middle; what lacks is black"
    )
    resample: Filter = "bilinear"
    scale: float | None = Field(1 / 255, gt=0)
    mean: tuple[float, ...] | None = Field((0.5, 0.5, 0.5), strict=False, description="one number a colour")
    deviation: tuple[float, ...] | None = Field((0.5, 0.5, 0.5), strict=False)

    @model_validator(mode="after")
    def _one_way_to_resize(self) -> Self:
        if self.shortest_edge is not None and self.size is not None:
            raise ValueError("size and shortest_edge are two ways to resize: set one of them to null")
        if self.longest_edge is not None and self.longest_edge < (
            self.shortest_edge or self.longest_edge + 1
        ):
            raise ValueError("longest_edge goes with a shortest_edge that is no longer")
        return self

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width that every picture gets; None where it depends on the picture."""
        return self.crop or self.size

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after resizing a picture of these."""
        short, most = self.shortest_edge, self.longest_edge
        if short is None:
            return self.size or (height, width)
        exact: float = short
        if most is not None and max(height, width) / min(height, width) * short > most:
            exact = most * float(min(height, width)) / max(height, width)
            short = round(exact)
        if min(height, width) == short:
            return height, width
        return (
            (int(exact * height / width), short) if width < height else (short, int(exact * width / height))
        )


def read_picture(
    picture: Any, settings: PictureSettings, colours: int, name: str | None = None
) -> NDArray[np.float32]:
    """A file, or a picture of Pillow's, -> (colours, height, width) float32; `name` is what errors call it.

    Raises DataError for what is missing, damaged, too large or no picture, TrifoldError where Pillow is not installed.
    """
    name = str(picture) if name is None else name
    upright = _decoded(picture, name, {1: "L", 3: "RGB"}.get(colours), colours)
    if settings.size is not None or settings.shortest_edge is not None:
        height, width = settings.resized(upright.height, upright.width)
        if not 1 <= height * width <= MOST_PIXELS:
            raise DataError(
                f"{name}: {upright.width:,} x {upright.height:,} pixels is too narrow to be resized"
            )
        upright = upright.resize((width, height), resample=_filter(settings.resample))
    pixels = np.asarray(upright)
    pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    if settings.crop is not None:
        pixels = _middle(pixels, settings.crop)
    numbers = pixels.astype(np.float64)
    numbers = numbers if settings.scale is None else numbers * settings.scale
    return _normalised(numbers.astype(np.float32), settings)


def _decoded(picture: Any, name: str, mode: str | None, colours: int) -> Any:
    """The upright picture in its mode, with all its pixels read."""
    if mode is None:
        raise DataError(f"{name}: this model reads pictures of {colours} colours, and files have 1 or 3")
    library, transposed = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures: they are refused below
            opened = library.open(picture, formats=FORMATS) if isinstance(picture, str | Path) else picture
            if not isinstance(opened, library.Image):
                raise DataError(f"{name}: not the path of a file, and no picture of Pillow's")
            if opened.width * opened.height > MOST_PIXELS:
                raise DataError(
                    f"{name}: {opened.width:,} x {opened.height:,} pixels is too large; "
                    f"at most {MOST_PIXELS:,} are read"
                )
            return transposed(opened).convert(mode)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; a model of pictures reads the paths of files") from None
    except IsADirectoryError:
        raise DataError(f"{name}: this is a folder; name a file in it") from None
    except library.UnidentifiedImageError:
        raise DataError(f"{name}: not a picture ({', '.join(FORMATS)} are read)") from None
    except library.DecompressionBombError:
        raise DataError(f"{name}: more than {MOST_PIXELS:,} pixels is too large") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # as its decoders complain
        raise DataError(f"{name}: damaged or truncated ({error}); copy the file again") from None


def _middle(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The middle of (colours, height, width); where there is less than that, zeros around it.

    Of an odd rest, the half that is larger is cut behind the middle, and added before it.
    """
    for axis, wanted in ((1, size[0]), (2, size[1])):
        there = pixels.shape[axis]
        if there >= wanted:
            start = (there - wanted) // 2
            pixels = pixels.take(range(start, start + wanted), axis)
        else:
            before = -(-(wanted - there) // 2)
            around = [(0, 0)] * 3
            around[axis] = before, wanted - there - before
            pixels = np.pad(pixels, around)
    return pixels


def _normalised(numbers: NDArray[np.float32], settings: PictureSettings) -> NDArray[np.float32]:
    for values, change in ((settings.mean, np.subtract), (settings.deviation, np.divide)):
        if values is None:
            continue
        if len(values) not in (1, len(numbers)):
            raise DataError(
                f"{len(values)} means or deviations for {len(numbers)} colours: give one a colour"
            )
        numbers = change(numbers, np.asarray(values, dtype=np.float32)[:, None, None])
    return numbers


def _filter(name: Filter) -> Any:
    library, _ = _pillow()
    return library.Resampling[name.upper()]


def _pillow() -> tuple[Any, Any]:
    """Pillow's module of images, and what turns a picture as its camera says."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise TrifoldError(HOW_TO_GET_PILLOW) from None
    return Image, ImageOps.exif_transpose
