"""Huge pages for the memory of weights."""

import platform
import sys
from pathlib import Path

import pytest
import torch

from trifold.fast import huge_pages
from trifold.fast.huge_pages import PAGE_BYTES, advise_huge_pages

SMAPS = Path("/proc/self/smaps")
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_kilobytes(address: int) -> int:
    """The size of the huge pages in the region of memory with that address."""
    is_inside = False
    for line in SMAPS.read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            is_inside = start <= address < end
        elif is_inside and first == "AnonHugePages:":
            return int(rest[0])
    return 0


def test_advised_tensors_smaller_than_a_page_get_huge_pages():
    if not SMAPS.exists() or not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("this system has no huge pages")
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("this version of Linux makes huge pages only of memory without contents")
    tensors = [torch.empty(3 * PAGE_BYTES // 4, dtype=torch.uint8) for _ in range(24)]
    before = sum(map(huge_kilobytes, {each.data_ptr() for each in tensors}))
    advise_huge_pages(tensors)
    assert sum(map(huge_kilobytes, {each.data_ptr() for each in tensors})) > before
    for number, each in enumerate(tensors):
        each.fill_(number)
    assert all(bool((each == number).all()) for number, each in enumerate(tensors))


def test_pages_contain_all_tensors_and_do_not_overlap():
    sizes = (1, PAGE_BYTES // 2, 3 * PAGE_BYTES, 5000)
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes for _ in range(3)]
    pages = list(huge_pages._pages(tensors))
    for each in tensors:
        start, end = each.data_ptr(), each.data_ptr() + each.nbytes
        assert sum(first <= start and end <= last for first, last in pages) == 1
    ends = [last for _, last in pages[:-1]]
    assert all(end < start for end, (start, _) in zip(ends, pages[1:], strict=True))
    assert all(each % PAGE_BYTES == 0 for page in pages for each in page)


def test_advice_does_nothing_for_empty_tensors_and_other_devices_and_systems(monkeypatch):
    advise_huge_pages([torch.empty(0), torch.empty(4, device="meta")])
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", None)
    advise_huge_pages([torch.empty(4)])
