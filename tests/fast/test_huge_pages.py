"""Memory of weights in huge pages."""

import ctypes
import gc
import mmap
import random
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from trifold.fast.huge_pages import ALIGNMENT, PAGE_BYTES, HugeMemory, read_ahead, release_file

SMAPS = Path("/proc/self/smaps")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def new_memory(sizes: list[int], **options: int) -> list[torch.Tensor]:
    memory = HugeMemory(**options)
    return [memory.empty((size,), torch.uint8) for size in sizes]


def sizes_at(address: int) -> dict[str, int]:
    """Kilobytes by name of the region of memory with that address."""
    found = {}
    is_inside = False
    for line in SMAPS.read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            is_inside = start <= address < end
        elif is_inside and rest[-1:] == ["kB"]:
            found[first.rstrip(":")] = int(rest[0])
    return found


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="no huge pages here"
)
def test_tensors_smaller_than_a_page_get_huge_pages() -> None:
    tensors = new_memory([3 * PAGE_BYTES // 4] * 24)
    for number, each in enumerate(tensors):
        each.fill_(number)
    assert sizes_at(tensors[0].data_ptr())["AnonHugePages"] >= 8 * PAGE_BYTES // 1024
    assert all(bool((each == number).all()) for number, each in enumerate(tensors))


@pytest.mark.skipif(not SMAPS.exists(), reason="not Linux")
def test_memory_is_freed_with_each_tensor() -> None:
    tensors = new_memory([PAGE_BYTES] * 4 + [100, PAGE_BYTES])
    for number, each in enumerate(tensors):
        each.fill_(number)
    address = tensors[5].data_ptr()
    before = sizes_at(address)["Rss"]
    del tensors[1:4], each
    gc.collect()
    assert sizes_at(address)["Rss"] <= before - 3 * PAGE_BYTES // 1024
    assert [int(each.unique()) for each in tensors] == [0, 4, 5]


@pytest.mark.parametrize("system", [sys.platform, "darwin"])
def test_tensors_are_aligned_and_have_storages_of_their_own(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    sizes = [1, 100, 0, PAGE_BYTES, 5000]
    tensors = new_memory(sizes)
    assert [each.untyped_storage().nbytes() for each in tensors] == sizes
    spans = sorted((each.data_ptr(), each.nbytes) for each in tensors if each.nbytes)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    for (start, size), (following, _) in pairwise(spans):
        assert start + size <= following


def test_tensors_larger_than_a_region_get_their_own() -> None:
    memory = HugeMemory(1000)
    tensors = [memory.empty((rows, 10), torch.bfloat16) for rows in (30, 300, 30, 1, 60)]
    for number, each in enumerate(tensors):
        each.fill_(number)
    assert all(bool((each == number).all()) for number, each in enumerate(tensors))
    assert tensors[3].data_ptr() - tensors[2].data_ptr() == 640


@pytest.mark.slow
@pytest.mark.skipif(not SMAPS.exists(), reason="not Linux")
def test_pages_are_provided_and_later_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trifold.fast.huge_pages.PROVIDED_BYTES", PAGE_BYTES)
    memory = HugeMemory()
    memory.provide(8 * PAGE_BYTES)
    for thread in threading.enumerate():
        if thread.name == "pages":
            thread.join()
    tensor = memory.empty((PAGE_BYTES,), torch.uint8)
    assert sizes_at(tensor.data_ptr())["Rss"] >= 8 * PAGE_BYTES // 1024
    stopped = HugeMemory()
    stopped.provide(200 * PAGE_BYTES)
    tensors = [stopped.empty((PAGE_BYTES,), torch.uint8).fill_(7) for _ in range(200)]
    assert all(bool((each == 7).all()) for each in tensors)
    assert not [each for each in threading.enumerate() if each.name == "pages"]
    small = HugeMemory(1000)
    small.provide(0)
    first, second = (small.empty((128,), torch.uint8) for _ in range(2))
    assert second.data_ptr() - first.data_ptr() == 128, "a region of the usual size"


def wait_for_pages() -> None:
    for thread in threading.enumerate():
        if thread.name == "pages":
            thread.join()


@pytest.mark.skipif(not SMAPS.exists(), reason="not Linux")
def test_a_file_is_read_ahead_and_released(tmp_path: Path) -> None:
    path = tmp_path / "data"
    content = random.Random(5).randbytes(PAGE_BYTES)
    path.write_bytes(content)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before = sizes_at(address)["Rss"]
    read_ahead(memory)
    wait_for_pages()
    assert before < PAGE_BYTES // 1024 <= sizes_at(address)["Rss"]
    release_file(memory)
    wait_for_pages()
    assert sizes_at(address)["Rss"] == 0
    assert bytes(memory) == content
