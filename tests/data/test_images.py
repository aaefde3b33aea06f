"""Image preprocessing follows the formula; errors name the file."""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trifold.data.images import ImageSettings, read_image
from trifold.errors import DataError, TrifoldError

image = pytest.importorskip("PIL.Image")
PLAIN = ImageSettings(size=None, scale=None, mean=None, deviation=None)


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def test_pixels_are_scaled_and_normalized_per_channel(noise, tmp_path):
    image.fromarray(noise).save(tmp_path / "a.png")
    settings = ImageSettings(size=None, scale=0.01, mean=(0.1, 0.2, 0.3), deviation=(1.0, 2.0, 4.0))
    found = read_image(tmp_path / "a.png", settings, 3)
    expected = (noise * 0.01 - [0.1, 0.2, 0.3]) / [1.0, 2.0, 4.0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.moveaxis(expected, -1, 0), atol=1e-6)


def test_default_settings_give_values_between_minus_1_and_1(noise):
    found = read_image(image.fromarray(noise), ImageSettings(), 3)
    assert found.shape == (3, 224, 224)
    assert -1 <= found.min() < -0.5 < 0.5 < found.max() <= 1


def test_channels_are_converted(noise):
    grey = read_image(image.fromarray(noise), PLAIN, 1)
    assert grey.shape == (1, 6, 9)
    assert np.ptp(read_image(image.fromarray(noise[:, :, 0]), PLAIN, 3), axis=0).max() == 0
    with pytest.raises(DataError, match="images of 4 channels"):
        read_image(image.fromarray(noise), PLAIN, 4)


def _png(width: int, height: int) -> bytes:
    """An image that declares a size and has no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _truncated(file: Path) -> bytes:
    random = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image.fromarray(random).save(file)
    return file.read_bytes()[:-3000]


BAD = {
    "text": (lambda file: b"not a picture at all", "not an image"),
    "empty": (lambda file: b"", "the file is empty; copy it again, or remove it"),
    "another format": (
        lambda file: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "not an image",
    ),
    "truncated": (_truncated, "damaged or truncated"),
    "no pixels": (lambda file: _png(9, 9), "damaged or truncated"),
    "much too large": (lambda file: _png(60_000, 60_000), "too large"),
    "slightly too large": (lambda file: _png(20_000, 6_000), "20,000 x 6,000 pixels is too large"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_images(case, tmp_path):
    make, message = BAD[case]
    file = tmp_path / "a.png"
    file.write_bytes(make(file))
    with pytest.raises(DataError, match=message) as caught:
        read_image(file, ImageSettings(), 3)
    assert str(file) in str(caught.value)


def test_missing_images(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        read_image(tmp_path / "none.png", ImageSettings(), 3)
    with pytest.raises(DataError, match="a folder, not a file; name a file in it"):
        read_image(tmp_path, ImageSettings(), 3)


def test_missing_pillow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TrifoldError, match=r'install "pillow>='):
        read_image(tmp_path / "a.png", ImageSettings(), 3)


def test_one_mean_per_channel(noise):
    with pytest.raises(DataError, match="2 means or deviations for 3 channels"):
        read_image(image.fromarray(noise), ImageSettings(mean=(0.1, 0.2)), 3)


DEEP = np.arange(54, dtype=np.uint16).reshape(6, 9) * 1213  # 16 bits
UPRIGHT = {1: lambda x: x, 3: lambda x: x[::-1, ::-1], 6: lambda x: np.rot90(x, -1)}


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_pixels_of_16_bits_are_upright(suffix, orientation, tmp_path):
    exif = image.Exif()
    exif[0x112] = orientation
    image.fromarray(DEEP).save(tmp_path / f"a.{suffix}", exif=exif)
    kinds = Counter()
    found = read_image(tmp_path / f"a.{suffix}", PLAIN, 1, kinds=kinds)
    np.testing.assert_array_equal(found[0], UPRIGHT[orientation](DEEP >> 8))
    assert [*kinds] == [("I;16", *found[0].shape)]  # as it is read, not as it is stored


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("suffix", [None, "tif"])
def test_pixels_of_32_bits_are_kept_or_refused(noise, dtype, suffix, tmp_path):
    def read(pixels: np.ndarray) -> np.ndarray:
        given = image.fromarray(pixels.astype(dtype))
        if suffix is not None:
            given.save(given := tmp_path / f"a.{suffix}")
        return read_image(given, PLAIN, 1)[0]

    np.testing.assert_array_equal(read(noise[..., 0]), noise[..., 0])
    wrong = [noise[..., 0] * 256.0, noise[..., 0] - 1.0 * noise.max()]
    wrong += [noise[..., 0] / 255, np.full((6, 9), np.nan)] if dtype is np.float32 else []
    for pixels in wrong:
        with pytest.raises(DataError, match=r"pixels of 32 bits from .* save the image with .*8"):
            read(pixels)


@pytest.mark.parametrize("name", ["a.tif", "a.tiff", "a.jfif"])
def test_further_suffixes_are_read(name, noise, tmp_path):
    image.fromarray(noise).save(tmp_path / name)
    found = read_image(tmp_path / name, PLAIN, 3)
    with image.open(tmp_path / name) as expected:
        np.testing.assert_array_equal(np.moveaxis(found, 0, -1), np.asarray(expected))


@pytest.mark.parametrize("size", [(6, 9), (4, 4), (5, 6), (9, 12), (3, 12), (7, 2)])
def test_a_crop_is_the_center_or_is_padded_with_zeros(noise, size):
    found = read_image(image.fromarray(noise), PLAIN.model_copy(update={"crop": size}), 3)
    top, left = ((target - side) / 2 for target, side in zip(size, noise.shape, strict=False))
    expected = np.zeros((3, *size), np.float32)
    for row, column in np.ndindex(*size):
        inner = row - math.ceil(top), column - math.ceil(left)
        if all(0 <= at < side for at, side in zip(inner, noise.shape, strict=False)):
            expected[:, row, column] = noise[inner]
    np.testing.assert_array_equal(found, expected)


def test_colors_that_are_not_converted_are_refused_with_a_remedy(noise, tmp_path):
    image.fromarray(noise, "LAB").save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif: pixels in LAB, .* to L; save the image in RGB"):
        read_image(tmp_path / "a.tif", PLAIN, 1)
