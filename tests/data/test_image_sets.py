"""Sets of images: every format gives the same pixels; damaged files are named."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from trifold.data import DataSettings, image_sets
from trifold.data.frames import Frame
from trifold.data.image_sets import measure_images, read_images
from trifold.data.images import ImageSettings
from trifold.errors import DataError

pillow = pytest.importorskip("PIL.Image")
SQUARE = ImageSettings(size=(6, 6))
PIXELS = np.random.default_rng(1).integers(0, 256, (4, 6, 6), dtype=np.uint8)
CLASSES = ("0", "0", "1", "1")


def write_folder(folder: Path) -> Path:
    for number, (image, name) in enumerate(zip(PIXELS, CLASSES, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def write_archive(folder: Path, mode: str, top: str = "train") -> Path:
    path = folder / f"images.tar.{mode}"
    with tarfile.open(path, f"w:{mode}") as archive:
        archive.add(write_folder(folder / "made"), top)
    return path


def write_idx(
    folder: Path, labels: bytes = b"\0\0\1\1", pack=gzip.compress, sign: str = "-"
) -> Path:
    suffix = "" if pack is bytes else ".gz"
    images, names = (
        folder / f"train-{part}-ubyte{suffix}"
        for part in (f"images{sign}idx3", f"labels{sign}idx1")
    )
    images.write_bytes(pack(b"\0\0\x08\x03" + struct.pack(">3I", *PIXELS.shape) + PIXELS.tobytes()))
    names.write_bytes(pack(b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + labels))
    return images


def write_zip(folder: Path, top: str = "train") -> Path:
    path = folder / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(write_folder(folder / "made").rglob("*.png")):
            archive.write(file, f"{top}/{file.relative_to(folder / 'made')}")
    return path


WRITERS = {
    "zip": write_zip,
    "folder of a zip": lambda folder: write_zip(folder) / "train",
    "folder": write_folder,
    "gz": lambda folder: write_archive(folder, "gz"),
    "xz": lambda folder: write_archive(folder, "xz"),
    "plain tar": lambda folder: write_archive(folder, ""),
    "idx.gz": write_idx,
    "idx": lambda folder: write_idx(folder, pack=bytes, sign="."),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_images_and_labels(kind, tmp_path):
    source = str(WRITERS[kind](tmp_path))
    rows = read_images(source, SQUARE, 1)
    assert rows.columns["label"] == [*CLASSES]
    np.testing.assert_array_equal(np.stack(rows.columns["image"])[..., 0], PIXELS)
    assert rows.columns["image"][0].dtype == np.uint8
    assert "converted" not in str(rows.report)
    assert measure_images(source) == (4, ("L", 6, 6))
    assert read_images([source, source], SQUARE, 1).columns["label"] == [*CLASSES] * 2


def test_other_sizes_and_modes_are_converted_and_counted(tmp_path):
    folder = write_folder(tmp_path)
    red = pillow.new("RGB", (9, 12), (255, 0, 0))
    for number, mode in enumerate(("RGB", "P", "RGBA")):
        red.convert(mode).save(folder / "1" / f"r{number}.png")
    pillow.fromarray(np.full((6, 6), 40_000, np.uint16)).save(folder / "1" / "s.png")
    (folder / "1" / "readme.txt").write_text("ignored", encoding="utf-8")
    (folder / "1" / "._r0.png").write_text("of a Mac, ignored", encoding="utf-8")
    rows = read_images(str(folder), SQUARE, 3)
    *_, first, second, third, deep = rows.columns["image"]
    for image in (first, second, third):
        assert image.shape == (6, 6, 3)
        assert (image == [255, 0, 0]).all()
    assert (deep == 40_000 >> 8).all()
    ignored = "other files ignored: 1 .png, 1 .txt"
    assert str(rows.report).endswith(f"8 rows, 8 converted to RGB 6 x 6, {ignored}")


def test_folders_without_images_and_animated_images_are_reported(tmp_path):
    folder = write_folder(tmp_path)
    (folder / "empty").mkdir()
    (folder / ".cache").mkdir()
    (folder / "__MACOSX").mkdir()
    (folder / "0" / "inner").mkdir()
    frames = [pillow.new("RGB", (6, 6), (shade, 0, 0)) for shade in (0, 90, 180)]
    frames[0].save(folder / "0" / "moves.gif", save_all=True, append_images=frames[1:])
    rows = read_images(str(folder), SQUARE, 1)
    notes = "1 with several frames (animated), of which the first is read, without images: empty"
    assert str(rows.report).endswith(notes)
    assert (
        rows.columns["image"][rows.columns["text"].index(str(folder / "0" / "moves.gif"))].max()
        == 0
    )


def test_the_preview_of_a_photo_is_not_reported(tmp_path):
    """Photos of phones are JPEG files with a second, smaller picture."""
    folder = write_folder(tmp_path)
    photo, preview = pillow.new("RGB", (6, 6)), pillow.new("RGB", (3, 3))
    photo.save(folder / "0" / "photo.jpg", "MPO", save_all=True, append_images=[preview])
    assert "frames" not in str(read_images(str(folder), SQUARE, 1).report)


def test_hidden_images_are_no_rows(tmp_path):
    """Not those whose name begins with a dot, nor those in such a folder."""
    folder = write_folder(tmp_path / "set")
    for name in (".x.png", ".thumbnails/0.png", "1/.cache/0.png", "1/._0.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "0" / "0.png", folder / name)
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(folder, "./top")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as packed:
        for file in folder.rglob("*.png"):
            packed.write(file, f"top/{file.relative_to(folder)}")
    for source in (folder, tmp_path / "set.tar", tmp_path / "set.zip"):
        rows = read_images(str(source), SQUARE, 1)
        assert sorted(rows.columns["label"]) == [*CLASSES]
        assert ("other files ignored: 4 .png" in str(rows.report)) == (source.suffix != ".zip")
    hidden = tmp_path / ".hidden"
    folder.rename(hidden)  # the source itself may be hidden
    assert len(read_images(str(hidden), SQUARE, 1)) == 4


def test_a_truncated_image_is_named(tmp_path):
    archive, folder = tmp_path / "set.tar", write_folder(tmp_path / "images")
    broken = folder / "1" / "2.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError, match=f"{broken}: damaged or truncated"):
        read_images(str(folder), SQUARE, 1)
    with tarfile.open(archive, "w") as file:
        file.add(folder, "top")
    with pytest.raises(DataError, match=r"set\.tar, top/1/2\.png: damaged or truncated"):
        read_images(str(archive), SQUARE, 1)


def test_an_archive_writes_nothing_and_limits_the_size_of_images(tmp_path, monkeypatch):
    image = io.BytesIO()
    pillow.fromarray(PIXELS[0]).save(image, "PNG")
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for name in ("../../out/a.png", "/out/b.png"):
            info = tarfile.TarInfo(name)
            info.size = len(image.getvalue())
            archive.addfile(info, io.BytesIO(image.getvalue()))
        link = tarfile.TarInfo("out/c.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    source = str(tmp_path / "set.tar")
    rows = read_images(source, SQUARE, 1)
    assert rows.columns["label"] == ["out", "out"]
    assert str(rows.report).endswith("other files ignored: 1 .png")
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar"]
    monkeypatch.setattr(image_sets, "MAX_BYTES", 10)
    with pytest.raises(DataError, match=r"a\.png: .* the limit of an image is 10"):
        read_images(source, SQUARE, 1)


def damaged_archive(folder: Path) -> Path:
    path = write_archive(folder, "xz")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def truncated_idx(folder: Path) -> Path:
    return write_idx(folder, pack=lambda content: gzip.compress(content[:-1]))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: folder / "none", "no such file"),
        (lambda folder: folder, "no image .* in a folder that is named after its class"),
        (lambda folder: write_folder(folder) / "1", "no image"),
        (damaged_archive, "not a readable tar archive"),
        (lambda folder: write_idx(folder, b"\0\0\1"), "4 images and 3 labels"),
        (truncated_idx, "not an IDX file of 3 dimensions, or truncated"),
        (
            lambda folder: write_idx(folder).rename(folder / "x-idx3.gz"),
            r"x-idx1\.gz: no such file",
        ),
    ],
)
def test_a_damaged_source_is_named(write, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_images(str(write(tmp_path)), SQUARE, 1)


def test_a_folder_with_several_splits_is_rejected(tmp_path):
    folder = tmp_path / "set"
    for split in ("train", "val"):
        write_folder(folder / split)
    source = str(folder)
    with pytest.raises(
        DataError, match=f"{source}: contains the splits train, val; .* such as {source}/train"
    ):
        read_images(source, SQUARE, 1)
    assert len(read_images([str(folder / "train"), str(folder / "val")], SQUARE, 1)) == 8
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(folder, "top")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as packed:
        for file in folder.rglob("*.png"):
            packed.write(file, file.relative_to(folder))
    for name in ("set.tar", "set.zip"):
        with pytest.raises(DataError, match=f"{name}: contains the splits train, val"):
            read_images(str(tmp_path / name), SQUARE, 1)
    assert len(read_images(str(tmp_path / "set.zip" / "train"), SQUARE, 1)) == 4


def test_classes_may_have_the_names_of_splits(tmp_path):
    for name in ("train", "test", "bus"):
        (tmp_path / name).mkdir()
        pillow.fromarray(PIXELS[0]).save(tmp_path / name / "a.png")
    assert read_images(str(tmp_path), SQUARE, 1).columns["label"] == ["bus", "test", "train"]


def test_of_a_gif_the_first_frame_is_read(tmp_path):
    (tmp_path / "a").mkdir()
    first, *others = (pillow.fromarray(each) for each in PIXELS)
    first.save(tmp_path / "a" / "1.gif", save_all=True, append_images=others)
    (image,) = read_images(str(tmp_path), SQUARE, 1).columns["image"]
    np.testing.assert_array_equal(image[..., 0], PIXELS[0])


def test_rows_in_memory_have_images_or_their_paths(tmp_path):
    folder = write_folder(tmp_path)
    files = sorted(folder.rglob("*.png"))
    frames = [
        [{"image": pillow.open(file), "label": file.parent.name} for file in files],
        {"path": [str(file) for file in files], "class": [int(file.parent.name) for file in files]},
        [{"img": file.read_bytes(), "label": file.parent.name} for file in files],
    ]
    for data in frames:
        frame = Frame("train", data)
        rows = read_images(frame, SQUARE, 1)
        assert rows.columns["label"] == [*CLASSES]
        np.testing.assert_array_equal(np.stack(rows.columns["image"])[..., 0], PIXELS)
        assert measure_images(frame) == (4, ("L", 6, 6))
    named = Frame("train", [{"x": str(file), "y": file.parent.name} for file in files])
    settings = DataSettings(columns={"image": "x", "label": "y"})
    assert read_images(named, SQUARE, 1, settings).columns["label"] == [*CLASSES]
