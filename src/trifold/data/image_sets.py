"""Sets of labelled images: folders and tar archives with a folder for each class, and IDX files
(MNIST).
"""

import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.data.images import ImageSettings, import_pillow, read_image
from trifold.data.lines import expand_path, open_binary
from trifold.data.records import RecordReport, Records
from trifold.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
SPLITS = {"train", "val", "valid", "validation", "test"}
MAX_BYTES = 2**26  # of an image in an archive
UNSCALED: dict[str, Any] = {"scale": None, "mean": None, "deviation": None}
# Names of a file and of a class; the path, bytes or Pillow image, or None for a file that is no
# image.
Labelled: TypeAlias = tuple[str, str, Any]


def read_images(source: str | list[str], settings: ImageSettings, channels: int) -> Records:
    """The images of a source, resized and cropped; their role "image" is (height, width, channels)
    uint8.

    Raises DataError for a source without images, and for an image that cannot be read.
    """
    settings, kinds = settings.model_copy(update=UNSCALED), Counter[tuple[str, int, int]]()
    records, ignored = (
        Records({role: [] for role in ("text", "pair", "label", "image")}),
        Counter[str](),
    )
    for number, (name, label, image) in enumerate(iter_images(source, ignored), start=1):
        pixels = np.moveaxis(
            read_image(image, settings, channels, name, kinds).astype(np.uint8), 0, -1
        )
        for column, value in zip(
            records.columns.values(), (name, None, label, pixels), strict=True
        ):
            column.append(value)
        records.lines.append(number)
    name = PurePath(source if isinstance(source, str) else source[0]).name
    records.report = RecordReport(name, pairs=len(records), columns={"label": "label"})
    kept = ("L" if channels == 1 else "RGB", *records.columns["image"][0].shape[:2])
    if count := len(records) - kinds.pop(kept, 0):
        mode, height, width = kept
        records.report.header.append(f"{count:,} converted to {mode} {height} x {width}")
    if ignored:
        kinds_of_files = ", ".join(f"{count:,} {suffix}" for suffix, count in ignored.most_common())
        records.report.header.append(f"other files ignored: {kinds_of_files}")
    return records


def measure_images(source: str | list[str]) -> tuple[int, tuple[str, int, int]]:
    """The number of images; Pillow mode, height and width of the first one."""
    found, kinds = iter_images(source, Counter()), Counter[tuple[str, int, int]]()
    name, _, image = next(found)
    read_image(image, ImageSettings(size=None, **UNSCALED), 3, name, kinds)
    return 1 + sum(1 for _ in found), next(iter(kinds))


def iter_images(source: str | list[str], ignored: Counter[str]) -> Iterator[Labelled]:
    """The images of folders, archives, or IDX files such as train-images-idx3-ubyte, beside which
    the labels are.

    ignored: counts other files by suffix. Raises DataError for a file that is missing or damaged,
    if there is no image, and for one of several splits that a source contains.
    """
    names, is_empty = [source] if isinstance(source, str) else source, True
    for name in names:
        path = expand_path(name)
        find = (
            _iter_idx if "idx3" in path.name else _iter_folder if path.is_dir() else _iter_archive
        )
        for image in find(name):
            if image[-1] is None:
                ignored[PurePath(image[0]).suffix or PurePath(image[0]).name] += 1
            else:
                is_empty = False
                yield image
    if is_empty:
        raise DataError(
            f"{names[0]}: no image ({', '.join(SUFFIXES)}) in a folder that is named after its "
            "class"
        )


def _iter_folder(name: str) -> Iterator[Labelled]:
    folder = expand_path(name)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    splits = SPLITS & {path.parent.parent.name for path in paths if _is_image(path)}
    if "train" in splits and len(splits) > 1:
        raise DataError(
            f"{name}: contains the splits {', '.join(sorted(splits))}; name the folder of one, "
            f"such as {name}/train"
        )
    for path in paths:
        yield (
            str(path),
            path.parent.name,
            path if path.parent != folder and _is_image(path) else None,
        )


def _is_image(path: PurePath) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _iter_archive(name: str) -> Iterator[Labelled]:
    """The images of a tar archive, plain or compressed. Nothing is written."""
    try:
        with open_binary(name, name) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                path, place = PurePath(member.name), f"{name}, {member.name}"
                if not path.parent.name or not _is_image(path) or not member.isfile():
                    if not member.isdir():
                        yield place, "", None
                    continue
                if member.size > MAX_BYTES:
                    raise DataError(
                        f"{place}: {member.size:,} bytes; the limit of an image is {MAX_BYTES:,}"
                    )
                content = archive.extractfile(member)
                assert content is not None
                yield place, path.parent.name, BytesIO(content.read())
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise DataError(
            f"{name}: not a readable tar archive ({error}); copy the file again"
        ) from None


def _iter_idx(name: str) -> Iterator[Labelled]:
    path = expand_path(name)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    images, labels = _read_idx(name, 3), _read_idx(str(beside), 1)
    if len(images) != len(labels):
        raise DataError(
            f"{name}: {len(images):,} images and {len(labels):,} labels; copy the files again"
        )
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=1):
        yield f"{name}, image {number}", str(label), import_pillow()[0].fromarray(image)


def _read_idx(name: str, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file: the code of bytes, the sizes of the dimensions, and the values."""
    with open_binary(name, name) as file:
        content, start = file.read(), 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4").astype(np.int64)
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != shape.prod():
        raise DataError(
            f"{name}: not an IDX file of {dimensions} dimensions, or truncated; copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
