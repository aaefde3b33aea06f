"""Compressed files are read as what is inside; what is damaged or cut short is refused, never half read."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from trifold.data import iter_lines, read_lines
from trifold.data.compressed import ending
from trifold.errors import DataError

LINES = [f"{number} ü\u2028 {'x' * (number % 90)}" for number in range(3000)]
RAW = "\n".join(LINES).encode()


def zstd(raw: bytes) -> bytes:
    library = pytest.importorskip(
        "zstandard", reason="zstandard is not installed: it comes with trifold[zst]"
    )
    return bytes(library.ZstdCompressor(level=1).compress(raw))


@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt"])
def test_zstd_is_told_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(zstd(RAW))
    assert read_lines(tmp_path / name) == LINES


def test_frames_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    half = len(RAW) // 2
    (tmp_path / "a.zst").write_bytes(zstd(RAW[:half]) + zstd(b"") + zstd(RAW[half:]))
    assert read_lines(tmp_path / "a.zst") == LINES


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_file_cut_short_is_noticed(tmp_path: Path, share: float) -> None:
    whole = zstd(RAW)
    (tmp_path / "a.zst").write_bytes(whole[: 5 + int(len(whole) * share)])
    with pytest.raises(DataError, match=r"a\.zst: the compressed file ends too early"):
        read_lines(tmp_path / "a.zst")


def test_a_second_frame_cut_short_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstd(b"whole\n") + zstd(RAW)[:-3])
    with pytest.raises(DataError, match="ends too early"):
        read_lines(tmp_path / "a.zst")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    damaged = bytearray(zstd(RAW))
    for place in range(20, 60):
        damaged[place] ^= 0xFF
    (tmp_path / "a.zst").write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.zst: the compressed file is damaged"):
        read_lines(tmp_path / "a.zst")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_ending_that_lies(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"plain\n")
    with pytest.raises(DataError, match=rf"ends in \{suffix} but is not (gzip|zstd); rename it"):
        read_lines(tmp_path / f"a{suffix}")


def test_without_the_library_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfdxxxx")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(DataError, match=r'needs the `zstandard` library; .*"trifold\[zst\]"'):
        read_lines(tmp_path / "a.zst")


def test_a_line_of_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    """Two gigabytes of zeros in some kilobytes: the first line is too long, and no more is unpacked."""
    block = zstd(bytes(64_000_000))
    (tmp_path / "a.zst").write_bytes(block * 32)
    with pytest.raises(DataError, match="longer than 1,000,000 bytes"):
        next(iter_lines(tmp_path / "a.zst"))


@pytest.mark.parametrize(
    ("file", "inside"),
    [("a/b.JSONL.GZ", ".jsonl"), ("b.txt.zst", ".txt"), ("b.gz", ""), ("b.tsv", ".tsv"), ("b", "")],
)
def test_the_ending_inside(file: str, inside: str) -> None:
    assert ending(file) == inside


def test_gzip_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(RAW))
    assert read_lines(tmp_path / "a.txt") == LINES
