"""What is computed follows from what the processor has."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trifold.fast import processor
from trifold.fast.instruction_sets import SETS
from trifold.fast.processor import (
    LINUX_NAMES,
    emulates_bf16_products,
    features,
    has_bf16_products,
    has_int8_products,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    has_int8_products.cache_clear()
    yield
    has_int8_products.cache_clear()


@pytest.mark.parametrize(
    ("avx2", "avx512_bf16", "amx", "has", "emulates"),
    [
        (True, True, False, True, False),
        (True, False, True, True, False),
        (True, False, False, False, True),
        (False, False, False, False, False),  # not an x86: a library may have other instructions
    ],
)
def test_products_of_bf16(
    avx2: bool,
    avx512_bf16: bool,
    amx: bool,
    has: bool,
    emulates: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: avx2)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert (has_bf16_products(), emulates_bf16_products()) == (has, emulates)


@pytest.mark.parametrize(
    ("vnni", "sums", "has"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)
def test_products_of_int8(
    vnni: bool, sums: int, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sums`: by how much those of PyTorch are wrong."""
    exact = torch.full((16, 16), 64 * 127 * 127, dtype=torch.int32)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: exact + sums)
    assert has_int8_products() == has


def features_of_llvm() -> set[str]:
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed")
    found = llvm.get_host_cpu_features()
    return {name for name in found if found[name]}


def read_features(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> frozenset[str]:
    """The features where this is the file of Linux."""
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo)
    return features.__wrapped__()


def test_features_of_linux_are_those_of_llvm() -> None:
    if not processor._linux_flags():
        pytest.skip("no x86 with Linux")
    assert features() == features_of_llvm().intersection(LINUX_NAMES.values())


@pytest.mark.parametrize("content", [None, "", "processor\t: 0\nFeatures\t: fp asimd avx2\n\n"])
def test_features_of_other_systems_are_those_of_llvm(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if content is not None:
        cpuinfo.write_text(content, "utf-8")
    assert read_features(cpuinfo, monkeypatch) == features_of_llvm()


def test_linux_reports_the_first_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    own = "avx avx2 f16c avx512f avx512_vnni avx512_bf16 amx_tile"
    lines = ("flags\t\t: " + own, "vmx flags\t: fma", "", "flags\t\t: fma", "")
    cpuinfo.write_text("\n".join(("processor\t: 0", *lines)), "utf-8")
    expected = {"avx2", "f16c", "avx512f", "avx512vnni", "avx512bf16", "amx-tile"}
    assert read_features(cpuinfo, monkeypatch) == expected


def test_code_depends_on_features_that_linux_reports() -> None:
    pytest.importorskip("numba")
    from trifold.fast.block_tile import BLOCK_INSTRUCTIONS

    tables = [each.features for each in BLOCK_INSTRUCTIONS.values()]
    tables += [each.features + each.excluded for each in SETS]
    assert set(LINUX_NAMES.values()).issuperset(name for table in tables for name in table)
