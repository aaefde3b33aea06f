"""Sets of labelled images: folders, tar and zip archives with a folder for each class, IDX files
(MNIST), and rows in memory.
"""

import lzma
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.data.archives import file_on_disk, is_hidden, stored_size
from trifold.data.datasets import iter_dataset
from trifold.data.files import SPLITS, check_found, files_in_archive, is_dataset
from trifold.data.headers import LABELS
from trifold.data.images import ANIMATED, SUFFIXES, ImageSettings, import_pillow, read_image
from trifold.data.lines import expand_path, open_binary
from trifold.data.reports import RowReport
from trifold.data.roles import Role, check_class, choose_columns, read_roles
from trifold.data.rows import Rows
from trifold.data.settings import DataSettings
from trifold.errors import DataError

MAX_BYTES = 2**26  # of an image in an archive
PLAIN = DataSettings()
# Columns of rows in memory.
ROLES = {
    "image": Role("image img picture photo pixels path file filename".split(), lambda x, _: x),
    "label": Role((*LABELS, "fine_label", "coarse_label"), check_class),
}
UNSCALED: dict[str, Any] = {"scale": None, "mean": None, "deviation": None}
# Names of a file and of a class; the path, bytes or Pillow image, or None for a file that is no
# image.
Labelled: TypeAlias = tuple[str, str, Any]


def read_images(
    source: str | list[str], settings: ImageSettings, channels: int, data: DataSettings = PLAIN
) -> Rows:
    """The images of a source, resized and cropped; their role "image" is (height, width, channels)
    uint8.

    data: names the columns of images and labels of rows in memory.

    Raises DataError for a source without images, and for an image that cannot be read.
    """
    settings = settings.model_copy(update=UNSCALED)
    kinds = Counter[Any]()
    ignored = Counter[str]()
    names: list[str] = []
    labels: list[str] = []
    images: list[NDArray[np.uint8]] = []
    for name, label, image in iter_images(source, ignored, data):
        pixels = read_image(image, settings, channels, name, kinds).astype(np.uint8)
        names.append(name)
        labels.append(label)
        images.append(np.moveaxis(pixels, 0, -1))
    count = len(images)
    mode = "L" if channels == 1 else "RGB"
    height, width = images[0].shape[:2]
    first = source if isinstance(source, str) else source[0]
    report = RowReport(PurePath(first).name, rows=count, columns={"label": "label"})
    if converted := count - kinds[mode, height, width]:
        report.notes.append(f"{converted:,} converted to {mode} {height} x {width}")
    if animated := kinds[ANIMATED]:
        report.notes.append(
            f"{animated:,} with several frames (animated), of which the first is read"
        )
    if empty := _folders_without_images(source):
        report.notes.append(f"without images: {', '.join(empty)}")
    if ignored:
        kinds_of_files = ", ".join(f"{files:,} {suffix}" for suffix, files in ignored.most_common())
        report.notes.append(f"other files ignored: {kinds_of_files}")
    columns: dict[str, list[Any]] = {
        "text": names,
        "pair": [None] * count,
        "label": labels,
        "image": images,
    }
    return Rows(columns, range(1, count + 1), report, identity=["image"])


def _folders_without_images(source: str | list[str]) -> list[str]:
    """The names of folders of classes, beside others, in which no image is."""
    names = [source] if isinstance(source, str) else source
    empty = []
    for folder in [expand_path(name) for name in names if not is_dataset(name)]:
        if not folder.is_dir():
            continue
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        parents = {parent for path in files if _is_image(path) for parent in path.parents}
        beside = {path.parent for path in parents}
        found = sorted(path for path in folder.rglob("*") if path.is_dir())
        for path in [path.relative_to(folder) for path in found]:
            if path.parent in beside and path not in parents and not _is_hidden_folder(path):
                empty.append(str(path))
    return empty


def _is_hidden_folder(path: PurePath) -> bool:
    """Whether a folder is hidden, or holds what macOS adds to archives."""
    return is_hidden(path) or "__MACOSX" in path.parts


def measure_images(
    source: str | list[str], data: DataSettings = PLAIN
) -> tuple[int, tuple[str, int, int]]:
    """The number of images; Pillow mode, height and width of the first one."""
    images = iter_images(source, Counter(), data)
    kinds = Counter[Any]()
    name, _, image = next(images)
    read_image(image, ImageSettings(size=None, **UNSCALED), 3, name, kinds)
    return 1 + sum(1 for _ in images), next(iter(kinds))


def iter_images(
    source: str | list[str], ignored: Counter[str], data: DataSettings = PLAIN
) -> Iterator[Labelled]:
    """The images of folders, archives, IDX files such as train-images-idx3-ubyte, beside which the
    labels are, or rows in memory or on the hub.

    ignored: counts other files by suffix. Raises DataError for a file that is missing or damaged,
    if there is no image, and for one of several splits that a source contains.
    """
    names = [source] if isinstance(source, str) else source
    is_empty = True
    for name in names:
        for image in _iter_source(name, data):
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


def list_images(source: str | list[str], data: DataSettings = PLAIN) -> dict[str, str]:
    """The files of a source in reading order, each with the class that its folder or row names;
    archives and IDX files name none.
    """
    labels: dict[str, str] = {}
    names = [source] if isinstance(source, str) else source
    for name in names:
        if is_dataset(name):
            rows = _iter_rows(name, data)
            labels |= {file: label for _, label, file in rows if isinstance(file, str)}
            continue
        path = expand_path(name)
        if "idx3" in path.name:
            labels |= {str(path): "", str(_labels_of_idx(path)): ""}
        elif path.is_dir():
            images = (image for image in _iter_folder(name) if image[-1] is not None)
            labels |= {file: label for file, label, _ in images}
        else:
            labels[str(file_on_disk(path))] = ""
    return labels


def _iter_rows(source: str, data: DataSettings) -> Iterator[Labelled]:
    """Rows of a path, bytes or a Pillow image, and a label."""
    columns: dict[str, str] = {}
    for _, place, row in iter_dataset(source, "train"):
        assert row is not None
        columns = columns or choose_columns(row, ROLES, data, place, is_table=False)
        image, label = read_roles(row, ROLES, columns, place)
        if isinstance(image, bytes):
            image = BytesIO(image)
        yield place, label, image


def _iter_source(name: str, data: DataSettings) -> Iterator[Labelled]:
    """The images of one file, folder or dataset, and the other files in it."""
    if is_dataset(name):
        return _iter_rows(name, data)
    path = expand_path(name)
    if "idx3" in path.name:
        return _iter_idx(name)
    if path.is_dir() or files_in_archive(path):
        return _iter_folder(name)
    return _iter_tar(name)


def _iter_folder(name: str) -> Iterator[Labelled]:
    """The images of a folder, of a zip archive, or of a folder in it."""
    folder = expand_path(name)
    in_archive = files_in_archive(folder)
    found = in_archive or sorted(path for path in folder.rglob("*") if not path.is_dir())
    images = {path for path in found if _is_image(path.relative_to(folder))}
    paths = found
    if not in_archive:
        check_found(images)
        paths = [path for path in found if path.is_file()]
        images &= {*paths}
    _check_splits(name, images, f"name the folder of one, such as {name}/train")
    for path in paths:
        if path.parent == folder or path not in images:
            yield str(path), "", None
        else:
            yield str(path), path.parent.name, _read_member(path) if in_archive else path


def _read_member(path: Path) -> BytesIO:
    _check_size(str(path), stored_size(path))
    with open_binary(path, str(path)) as content:
        return BytesIO(content.read())


def _check_splits(name: str, images: Iterable[PurePath], remedy: str) -> None:
    splits = SPLITS & {path.parent.parent.name for path in images}
    if "train" in splits and len(splits) > 1:
        raise DataError(f"{name}: contains the splits {', '.join(sorted(splits))}; {remedy}")


def _is_image(path: PurePath) -> bool:
    """Whether a path in a folder or an archive is that of an image, and not hidden."""
    return path.name.lower().endswith(SUFFIXES) and not is_hidden(path)


def _iter_tar(name: str) -> Iterator[Labelled]:
    """The images of a tar archive, plain or compressed. Nothing is written."""
    images = set[PurePath]()
    try:
        with open_binary(name, name) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                path = PurePath(member.name)
                place = f"{name}, {member.name}"
                if not path.parent.name or not _is_image(path) or not member.isfile():
                    if not member.isdir():
                        yield place, "", None
                    continue
                _check_size(place, member.size)
                content = archive.extractfile(member)
                assert content is not None
                images.add(path)
                yield place, path.parent.name, BytesIO(content.read())
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        if not {".tar", ".tgz"} & {*PurePath(name.lower()).suffixes}:
            raise DataError(
                f"{name}: neither a folder nor an archive of images; name a folder, or a .tar or "
                ".zip archive, that has a folder of images for each class"
            ) from None
        raise DataError(
            f"{name}: not a readable tar archive ({error}); copy the file again"
        ) from None
    _check_splits(name, images, "unpack it, and name the folder of one")  # a stream is read once


def _check_size(place: str, size: int) -> None:
    if size > MAX_BYTES:
        raise DataError(f"{place}: {size:,} bytes; the limit of an image is {MAX_BYTES:,}")


def _iter_idx(name: str) -> Iterator[Labelled]:
    images = _read_idx(name, 3)
    labels = _read_idx(str(_labels_of_idx(expand_path(name))), 1)
    if len(images) != len(labels):
        raise DataError(
            f"{name}: {len(images):,} images and {len(labels):,} labels; copy the files again"
        )
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=1):
        yield f"{name}, image {number}", str(label), import_pillow()[0].fromarray(image)


def _labels_of_idx(images: Path) -> Path:
    """The file of the labels, which is beside that of the images."""
    return images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))


def _read_idx(name: str, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file: the code of bytes, the sizes of the dimensions, and the values."""
    with open_binary(name, name) as file:
        content = file.read()
        start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4").astype(np.int64)
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - start != shape.prod():
        raise DataError(
            f"{name}: not an IDX file of {dimensions} dimensions, or truncated; copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
