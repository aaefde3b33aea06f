"""What the processor has, as Linux, LLVM and PyTorch report it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
# Features of x86 by their names in Linux -> those of LLVM, where code depends on them.
LINUX_NAMES = {
    **{name: name for name in ("avx2", "fma", "f16c")},
    **{name: name for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq")},
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "amx_tile": "amx-tile",
}


@cache
def features() -> frozenset[str]:
    """The names of LLVM, on Linux those of LINUX_NAMES only; empty if LLVM is needed and not
    installed, or does not know the processor.
    """
    flags = _linux_flags()
    if flags:  # LLVM takes 40 ms to be imported
        return frozenset(LINUX_NAMES[flag] for flag in flags if flag in LINUX_NAMES)
    try:
        from llvmlite.binding import get_host_cpu_features

        found = get_host_cpu_features()
    except (ImportError, RuntimeError):
        return frozenset()
    return frozenset(name for name, is_there in found.items() if is_there)


def _linux_flags() -> list[str]:
    """Those of the first processor of x86, as Linux names them; empty on other systems."""
    try:
        with CPUINFO.open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return value.split()
    except OSError:
        pass
    return []


def converts_float16() -> bool:
    """Whether one instruction converts several numbers of float16 to float32."""
    return "f16c" in features()


def has_bf16_products() -> bool:
    """Whether there are instructions of x86 for products of bf16: those of AVX-512 or AMX."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def emulates_bf16_products() -> bool:
    """Whether products of bf16 take ten times as long as those of fp32, or more: on a processor of
    x86 without instructions for them.
    """
    return torch.cpu._is_avx2_supported() and not has_bf16_products()


@cache
def has_int8_products() -> bool:
    """Whether torch._int_mm is exact, and fast. Without VNNI it is a plain loop, or adds pairs of
    products in 16 bits, which overflow.
    """
    if not torch.cpu._is_vnni_supported():
        return False
    largest = torch.full((16, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.t()) == 64 * 127 * 127).all())
