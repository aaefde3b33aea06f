"""Numbers on the disk are read like an array, in memory that does not grow with what is read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.data.mapped import Mapped

NUMBERS = np.arange(1000, dtype="<u2") * 61


@given(
    key=st.one_of(
        st.integers(0, 999),
        st.slices(1000),
        st.lists(st.integers(0, 999), max_size=30).map(lambda places: np.array(places, np.int64)),
    )
)
def test_it_is_indexed_like_an_array(tmp_path_factory: pytest.TempPathFactory, key: object) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.bin"
    if not path.is_file():
        path.write_bytes(NUMBERS.tobytes())
    mapped = Mapped(path, "<u2")
    assert np.array_equal(mapped[key], NUMBERS[key])  # type: ignore[index]
    assert (len(mapped), mapped.dtype, mapped.nbytes) == (1000, np.uint16, 2000)
    assert np.array_equal(np.asarray(mapped), NUMBERS)


def test_what_it_gives_is_a_copy_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "numbers.bin"
    path.write_bytes(NUMBERS.tobytes())
    mapped = Mapped(path, "<u2")
    for key in (slice(3, 9), np.array([1, 5])):
        mapped[key][:] = 0
        assert np.array_equal(mapped[key], NUMBERS[key])
    mapped.release()
    assert np.array_equal(mapped[:], NUMBERS)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(mapped)[0] = 1


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is there on Linux")
def test_memory_does_not_grow_with_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    mapped = Mapped(path, "<u4")
    rng = np.random.default_rng(0)
    before, most = resident(), 0
    for start in range(0, len(mapped), 1 << 20):
        assert not mapped[start : start + (1 << 20)].any()
        most = max(most, resident())
    for _ in range(60):
        assert not mapped[rng.integers(0, len(mapped), 50)].any()
        most = max(most, resident())
    assert most - before < 100 << 20
