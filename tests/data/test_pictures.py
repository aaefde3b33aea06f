"""Pictures become numbers by the formula, and what is no picture is an error with its name."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from trifold.data.pictures import PictureSettings, read_picture
from trifold.errors import DataError, TrifoldError

image = pytest.importorskip("PIL.Image")
PLAIN = PictureSettings(size=None, scale=None, mean=None, deviation=None)


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def test_pixels_are_rescaled_and_normalised_colour_by_colour(noise, tmp_path):
    image.fromarray(noise).save(tmp_path / "a.png")
    settings = PictureSettings(size=None, scale=0.01, mean=(0.1, 0.2, 0.3), deviation=(1.0, 2.0, 4.0))
    found = read_picture(tmp_path / "a.png", settings, 3)
    expected = (noise * 0.01 - [0.1, 0.2, 0.3]) / [1.0, 2.0, 4.0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.moveaxis(expected, -1, 0), atol=1e-6)


def test_the_usual_settings_give_numbers_from_minus_1_to_1(noise):
    found = read_picture(image.fromarray(noise), PictureSettings(), 3)
    assert found.shape == (3, 224, 224)
    assert -1 <= found.min() < -0.5 < 0.5 < found.max() <= 1


def test_colours_are_made_to_fit(noise):
    grey = read_picture(image.fromarray(noise), PLAIN, 1)
    assert grey.shape == (1, 6, 9)
    assert np.ptp(read_picture(image.fromarray(noise[:, :, 0]), PLAIN, 3), axis=0).max() == 0
    with pytest.raises(DataError, match="pictures of 4 colours"):
        read_picture(image.fromarray(noise), PLAIN, 4)


def _png(width: int, height: int) -> bytes:
    """A picture that claims a size and holds nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _cut(file: Path) -> bytes:
    random = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image.fromarray(random).save(file)
    return file.read_bytes()[:-3000]


BAD = {
    "text": (lambda file: b"not a picture at all", "not a picture"),
    "empty": (lambda file: b"", "not a picture"),
    "a format that is not read": (
        lambda file: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "not a picture",
    ),
    "truncated": (_cut, "damaged or truncated"),
    "nothing inside": (lambda file: _png(9, 9), "damaged or truncated"),
    "far too large": (lambda file: _png(60_000, 60_000), "too large"),
    "somewhat too large": (lambda file: _png(20_000, 6_000), "20,000 x 6,000 pixels is too large"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_picture_is_named(case, tmp_path):
    make, said = BAD[case]
    file = tmp_path / "a.png"
    file.write_bytes(make(file))
    with pytest.raises(DataError, match=said) as caught:
        read_picture(file, PictureSettings(), 3)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        read_picture(tmp_path / "none.png", PictureSettings(), 3)
    with pytest.raises(DataError, match="this is a folder"):
        read_picture(tmp_path, PictureSettings(), 3)


def test_without_pillow_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TrifoldError, match=r"pip install 'trifold\[vision\]'"):
        read_picture(tmp_path / "a.png", PictureSettings(), 3)


def test_as_many_means_as_colours(noise):
    with pytest.raises(DataError, match="2 means or deviations for 3 colours"):
        read_picture(image.fromarray(noise), PictureSettings(mean=(0.1, 0.2)), 3)
