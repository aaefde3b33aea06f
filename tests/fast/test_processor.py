"""What is computed follows from what the processor has."""

from collections.abc import Iterator

import pytest
import torch

from trifold.fast.processor import (
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


def test_features_are_those_of_llvm() -> None:
    llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed")
    found = llvm.get_host_cpu_features()
    assert features() == {name for name in found if found[name]}
