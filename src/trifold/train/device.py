"""The machine of a run: device, precision, workers, ranks and versions, and the settings of its
process.
"""

import ctypes
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

import trifold
from trifold import fast
from trifold.errors import SettingsError, UsageError
from trifold.fast import compiled_loops
from trifold.fast.int8_training import int8_training_obstacle
from trifold.fast.matmul import library
from trifold.fast.processor import has_bf16_products
from trifold.memory import find_device
from trifold.recipe import TrainSettings
from trifold.train.ranks import SINGLE, Ranks

# Optimizers that update each element independently, so that sharding may split tensors anywhere.
ELEMENTWISE = ("adam", "adamw", "sgd")


class Machine(NamedTuple):
    """What a run computes with.

    workers: threads that process micro-batches in parallel. sharded: whether each rank has a part
        of the model only.
    compiles: whether blocks are compiled. int8: whether layers train in int8. The last two are None
    if not requested.
    """

    device: torch.device
    dtype: torch.dtype
    workers: int
    ranks: Ranks = SINGLE
    sharded: bool = False
    compiles: bool | None = None
    int8: bool | None = None

    @property
    def arithmetic(self) -> str:
        """The types of the computation, such as `bfloat16+int8`."""
        if self.int8:
            return f"{_name_of(self.dtype)}+int8"
        return _name_of(self.dtype)

    @property
    def device_label(self) -> str:
        """The device, such as `cuda:0`; of several ranks its kind, such as `cuda`."""
        if self.ranks.world > 1:
            return self.device.type
        return str(self.device)

    def __str__(self) -> str:
        parts = [f"device {self.device_label}"]
        if self.device.type == "cpu":
            threads = torch.get_num_threads()
            parts.append(f"{threads} thread{'s' * (threads != 1)}")
        if self.workers > 1:
            parts.append(f"{self.workers} workers")
        if self.ranks.world > 1:
            ranks = f"{self.ranks.world} ranks"
            if self.sharded:
                ranks += " with a sharded model"
            parts.append(ranks)
        if self.compiles:
            parts.append("compiled blocks")
        elif self.compiles is not None:
            reason = compile_obstacle(self.device) or "another rank cannot"
            parts.append(f"blocks not compiled ({reason})")
        arithmetic = f"computing in {self.arithmetic}"
        if self.int8 is False:
            reason = int8_training_obstacle(self.device) or "another rank cannot"
            arithmetic += f" without int8 ({reason})"
        parts.append(arithmetic)
        parts.append(f"weights in {_name_of(master_dtype(self.dtype))}")
        return ", ".join(parts)


def _name_of(dtype: torch.dtype) -> str:
    """Such as `float32`."""
    return str(dtype).removeprefix("torch.")


def find_machine(settings: TrainSettings, tokens: int, ranks: Ranks) -> Machine:
    """The machine for batches of `tokens` tokens. Raises UsageError if it lacks what the recipe
    requires.
    """
    device = device_of_rank(settings.device, ranks)
    dtype = choose_precision(settings.precision, device)
    sharded = settings.sharding == "full" and ranks.world > 1
    if sharded:
        check_sharding(settings)
        workers = 1
    else:
        workers = choose_workers(settings.worker_count, device, tokens // ranks.world)
    compiles: bool | None = None
    if settings.compile != "none":
        compiles = not compile_obstacle(device)
    int8: bool | None = None
    if settings.precision == "int8":
        int8 = not int8_training_obstacle(device)
    return Machine(device, dtype, workers, ranks, sharded, compiles, int8)


def for_batches(machine: Machine, settings: TrainSettings, tokens: int) -> Machine:
    """The machine with the workers for batches of another size."""
    if machine.sharded:
        return machine
    tokens //= machine.ranks.world
    workers = choose_workers(settings.worker_count, machine.device, tokens)
    return machine._replace(workers=workers)


def check_sharding(settings: TrainSettings) -> None:
    """Raises SettingsError for settings that are incompatible with sharding."""
    if settings.optimizer not in ELEMENTWISE:
        raise SettingsError(
            f"train.sharding: full is incompatible with train.optimizer: {settings.optimizer}, "
            "which needs whole "
            f"matrices; set train.sharding=none, or train.optimizer to {' or '.join(ELEMENTWISE)}"
        )
    if settings.workers not in (None, 1):
        raise SettingsError(
            f"train.sharding: full is incompatible with train.workers: {settings.workers}, "
            "because workers share "
            "full weights; set train.workers=1, and start more ranks instead"
        )


def agree_on_options(machine: Machine) -> Machine:
    """Compile and use int8 on all ranks or on none."""

    def all_ranks(can: bool | None) -> bool | None:
        if can is None:
            return None
        return machine.ranks.sum([not can])[0] == 0

    return machine._replace(compiles=all_ranks(machine.compiles), int8=all_ranks(machine.int8))


@cache
def compile_obstacle(device: torch.device) -> str:
    """Why blocks cannot be compiled for this device, or "". Compiles a small function, which takes
    seconds.
    """
    # A compiler may be missing, too old, without headers or without disk space; the error types are
    # not documented.
    try:
        x = torch.ones(2, 3, device=device, requires_grad=True)
        torch.compile(torch.nn.functional.gelu, dynamic=True)(x).sum().backward()
    except Exception as error:
        return f"{str(error).strip() or type(error).__name__:.200}".split("\n")[0]
    return ""


def device_of_rank(name: str, ranks: Ranks) -> torch.device:
    """The named device; of several ranks the CPU, or the GPU with their local number. Raises
    UsageError if missing.
    """
    if ranks.world == 1:
        return find_device(name)
    if name not in ("auto", "cuda", "cpu"):
        raise UsageError(
            f"train.device: {name!r} is a single device, but there are {ranks.world} ranks; use "
            "auto, cuda or cpu"
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus < ranks.local_world:
        raise UsageError(
            f"{ranks.local_world} ranks on this machine, but only {gpus} GPUs; start one rank per "
            f"GPU (--nproc-per-node {gpus}), or choose train.device=cpu"
        )
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The named type. For auto, and for int8 outside its matmuls: bf16 if the device multiplies it
    faster than fp32.
    """
    if name in PRECISIONS:
        return PRECISIONS[name]
    if multiplies_bf16_fast(device):
        return torch.bfloat16
    return torch.float32


def multiplies_bf16_fast(device: torch.device) -> bool:
    """Whether a device has instructions for bf16 matmuls. Emulation is slower than fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and has_bf16_products()


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of master weights and gradient sums if the model computes in `dtype`."""
    if dtype is torch.float64:
        return torch.float64
    return torch.float32


def choose_workers(requested: int | None, device: torch.device, tokens: int) -> int:
    """The number of workers for batches of `tokens` tokens. Raises UsageError if a GPU is to have
    several.
    """
    if device.type != "cpu":
        if requested not in (None, 1):
            raise UsageError(
                f"train.workers={requested}: workers share batches on a CPU only, not on "
                f"{device}; set train.workers=1"
            )
        return 1
    if requested is not None:
        return requested
    if compiled_loops() is None:
        return 1  # threads within an operator are as fast as workers
    return max(1, min(torch.get_num_threads(), tokens // 1024))


# --- what a run depends on besides its recipe -----------------------------------------------------


def environment(machine: Machine) -> dict[str, Any]:
    """The content of environment.json."""
    if machine.device.type == "cuda":
        processor = torch.cuda.get_device_name(machine.device)
    else:
        processor = platform.processor()
    return {
        "trifold": trifold.__version__,
        "git": _git_revision(),
        "torch": torch.__version__,
        "numba": next((numba.version for numba in metadata.distributions(name="numba")), None),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": machine.device_label,
        "device_name": processor,
        "precision": machine.arithmetic,
        "threads": torch.get_num_threads(),
        "workers": machine.workers,
        "ranks": machine.ranks.world,
        "compiled": bool(machine.compiles),
        "fast": fast.enabled(),
        "fp32_matmul": library() if fast.enabled() else "pytorch",
    }


@cache
def _git_revision() -> str | None:
    """The revision of the code of trifold at its first call, if it runs from a checkout."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},  # a killed process would leave the lock
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


# --- settings of the process ----------------------------------------------------------------------


MMAP_THRESHOLD = 48 * 2**20  # bytes
MAX_MMAP_THRESHOLD = 32 * 2**20  # that glibc before 2.35 accepts


def keep_freed_memory() -> None:
    """Configure glibc to keep freed blocks instead of returning them to the system after every
    operation.

    Activations of several megabytes are allocated hundreds of times per step, and each allocation
    from the system costs a page fault per 4 KiB. Blocks above MMAP_THRESHOLD are still returned:
    they are few, and keeping them fragments about a tenth of the memory. Does nothing with other C
    libraries.
    """
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        _ = mallopt(mmap_threshold, MMAP_THRESHOLD) or mallopt(mmap_threshold, MAX_MMAP_THRESHOLD)
        mallopt(trim_threshold, (1 << 31) - 1)
