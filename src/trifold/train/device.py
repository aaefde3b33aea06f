"""Which device, and which precision pays on it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple

import torch

from trifold.errors import UsageError
from trifold.fast.int8_training import bytes_hindrance
from trifold.fast.kernels import loops
from trifold.recipe import TrainSettings
from trifold.train.ranks import ALONE, Ranks
from trifold.train.sharding import check_sharding
from trifold.train.weights import wide_type


class Machine(NamedTuple):
    """What a run computes with: a device, a type, threads that learn side by side; of several ranks, which this is and
    whether each keeps a part of the model only; whether blocks are compiled, and whether layers learn by products of
    bytes, both None where nobody asks for it.
    """

    device: torch.device
    dtype: torch.dtype
    workers: int
    ranks: Ranks = ALONE
    shards: bool = False
    compiles: bool | None = None
    by_bytes: bool | None = None

    @property
    def arithmetic(self) -> str:
        """What is computed in: a type, or two."""
        return str(self.dtype).removeprefix("torch.") + ("+int8" if self.by_bytes else "")

    def __str__(self) -> str:
        parts = [f"device {self.device if self.ranks.world == 1 else self.device.type}"]
        parts += [f"{torch.get_num_threads()} threads"] if self.device.type == "cpu" else []
        parts += [f"{self.workers} workers"] if self.workers > 1 else []
        if self.ranks.world > 1:
            parts.append(f"{self.ranks.world} ranks{' with a part of the model each' if self.shards else ''}")
        if self.compiles is not None:
            why = hindrance(self.device) or "another rank cannot"
            parts.append("compiled blocks" if self.compiles else f"blocks not compiled ({why})")
        parts.append(f"{self.arithmetic} arithmetic")
        if self.by_bytes is False:
            parts[-1] += f" without int8 ({bytes_hindrance(self.device) or 'another rank cannot'})"
        return ", ".join([*parts, f"{str(wide_type(self.dtype)).removeprefix('torch.')} master weights"])


def find_machine(settings: TrainSettings, tokens: int, ranks: Ranks) -> Machine:
    """What there is for what a recipe asks, with batches of so many tokens. Raises UsageError where it is not there."""
    device = find_device(settings.device, ranks)
    dtype = choose_precision(settings.precision, device)
    shards = settings.sharding == "full" and ranks.world > 1
    if shards:
        check_sharding(settings)
    compiles = None if settings.compile == "none" else not hindrance(device)
    workers = 1 if shards else choose_workers(settings.worker_count, device, tokens // ranks.world)
    by_bytes = None if settings.precision != "int8" else not bytes_hindrance(device)
    return Machine(device, dtype, workers, ranks, shards, compiles, by_bytes)


@cache
def hindrance(device: torch.device) -> str:
    """Why no graph can be compiled for it here, or nothing: what that takes is tried, not looked for. Takes seconds."""
    # A compiler may be missing, too old, without headers, without a disk: nobody has listed all that is raised then.
    try:
        x = torch.ones(2, 3, device=device, requires_grad=True)
        torch.compile(torch.nn.functional.gelu, dynamic=True)(x).sum().backward()
    except Exception as error:
        return f"{str(error).strip() or type(error).__name__:.200}".split("\n")[0]
    return ""


def agreed(machine: Machine) -> Machine:
    """What is asked for and not everywhere to be had is done by all ranks or by none."""

    def all_can(can: bool | None) -> bool | None:
        return None if can is None else machine.ranks.total([not can])[0] == 0

    return machine._replace(compiles=all_can(machine.compiles), by_bytes=all_can(machine.by_bytes))


def find_device(wanted: str = "auto", ranks: Ranks = ALONE) -> torch.device:
    """CUDA, then MPS, then CPU; or the one that is named. Each rank of a machine gets a GPU of its own.

    Raises UsageError where it is not there.
    """
    if ranks.world > 1:
        return _own_device(wanted, ranks)
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(f"device {wanted!r} is not known; use auto, cpu, cuda, cuda:0 or mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _has_mps()}
    if not there.get(device.type, False):
        raise UsageError(
            f"device {wanted!r} is not here; devices found: {', '.join(k for k, v in there.items() if v)}"
        )
    return device


def _own_device(wanted: str, ranks: Ranks) -> torch.device:
    """Of one of several ranks: the GPU with its number on this machine, or the CPU."""
    if wanted not in ("auto", "cuda", "cpu"):
        raise UsageError(
            f"train.device: {wanted!r} is one device, and there are {ranks.world} ranks; use auto, cuda or cpu"
        )
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if (found := torch.cuda.device_count()) < ranks.beside:
        raise UsageError(
            f"{ranks.beside} ranks on this machine, and {found} GPUs; start one for each (--nproc-per-node {found}), "
            "or choose train.device=cpu"
        )
    torch.cuda.set_device(ranks.local)
    return torch.device("cuda", ranks.local)


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def choose_precision(
    wanted: Literal["auto", "float32", "bfloat16", "int8", "float64"], device: torch.device
) -> torch.dtype:
    """The one that is named; else bf16 where the device multiplies it faster than fp32, else fp32. So it is with int8,
    which is for products only.
    """
    return PRECISIONS.get(wanted) or (torch.bfloat16 if _bf16_pays(device) else torch.float32)


def _bf16_pays(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        # Instructions for bf16 products: AVX-512 BF16 or AMX. Emulated ones are slower than fp32.
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def choose_workers(wanted: int | None, device: torch.device, tokens: int) -> int:
    """How many threads learn side by side from batches of so many tokens. Raises UsageError where that cannot be."""
    if device.type != "cpu":
        if wanted not in (None, 1):
            raise UsageError(
                f"train.workers={wanted}: batches are shared between threads of a CPU only, not on {device}"
            )
        return 1
    if wanted is not None:
        return wanted
    # Without the compiled loops, several threads an operator are as quick as several operators side by side.
    return max(1, min(torch.get_num_threads(), tokens // 1024)) if loops() is not None else 1


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


LARGE = 48 * 2**20  # bytes
LARGEST = 32 * 2**20  # that glibc before 2.35 takes for large


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks instead of giving them back to the system after every operation.

    Activations of some megabytes come and go hundreds of times a step; each return and renewed request costs a page
    fault for every 4 KiB. Blocks of LARGE bytes and more are given back all the same: few are that large, so it costs
    little time, and kept they left gaps that took a tenth of all memory. Does nothing where the C library is another.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    _ = mallopt(mmap_threshold, LARGE) or mallopt(mmap_threshold, LARGEST)
    mallopt(trim_threshold, (1 << 31) - 1)


@contextmanager
def undisturbed(workers: int) -> Iterator[None]:
    """Keep Python itself out of the way of the workers, which share its one lock, until the block ends.

    The cyclic collector stops them all for tenths of a second to look through what was there before and will stay;
    and a worker that only has an operator to start waits up to a switch interval for one that reckons in Python.
    """
    before = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    if workers > 1:
        sys.setswitchinterval(min(before, 0.0005))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
