"""The devices, and the memory that this process may use: of the machine, the container and the
shell, or of a GPU.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from trifold.errors import NotEnoughMemoryError, UsageError

Limit = tuple[int, str]  # available bytes, and the origin of the limit
UNCHECKED = 2**28  # bytes; less is not compared with the available memory


def find_device(name: str = "auto") -> torch.device:
    """The named device, or the first of CUDA, MPS and CPU. Raises UsageError if there is no such
    device.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(key for key, value in available.items() if value))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:0 or mps") from None
    if not available.get(device.type, False):
        names = ", ".join(sorted(key for key, value in available.items() if value))
        raise UsageError(f"device {name!r} is not available; available devices: {names}")
    return device


def available_memory(device: torch.device, processes: int = 1) -> Limit:
    """The memory of a device that each of `processes` equal processes may use; they share that of a
    CPU.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], f"free on {device}"
    limits = [*_system_limits(), *_container_limits(), *_shell_limits()]
    limit, origin = min(limits, default=(2**62, "unlimited"))
    if processes > 1:
        origin = f"{origin}, shared by {processes} ranks"
    return limit // processes, origin


def return_freed_memory() -> None:
    """Return to the system what was freed and the C library keeps for later (glibc)."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def require_memory(need: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise NotEnoughMemoryError if a request needs more bytes than are available.

    what: the request. remedy: how to need less.
    """
    if need <= UNCHECKED:
        return
    available, origin = available_memory(device)
    if need > available:
        raise NotEnoughMemoryError(
            f"{what} need {format_size(need)} of memory; {format_size(available)} available "
            f"({origin}); {remedy}"
        )


def _system_limits() -> Iterator[Limit]:
    """MemAvailable: what Linux can provide without swapping."""
    for line in _read_text(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            yield int(amount.split()[0]) * 1024, "on this machine"


CGROUPS = Path("/sys/fs/cgroup")
# By cgroup version: the files with the limit and the usage, and the line of memory.stat that can be
# reclaimed.
_FILES = {
    "2": ("memory.max", "memory.current", "inactive_file"),
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _container_limits(groups: Path = Path("/proc/self/cgroup")) -> Iterator[Limit]:
    """The limits of all control groups of this process; the path may be relative to another
    container.
    """
    for line in _read_text(groups).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            version = "2"
            root = CGROUPS
        elif "memory" in controllers.split(","):
            version = "1"
            root = CGROUPS / "memory"
        else:
            continue
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield from _group_limits(group, *_FILES[version])
            if group == root:
                break


def _group_limits(group: Path, limit_file: str, used_file: str, cache: str) -> Iterator[Limit]:
    limit = _read_text(group / limit_file).strip()
    used = _read_text(group / used_file).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= 2**60:
        return
    lines = _read_text(group / "memory.stat").splitlines()
    stat = dict(line.split() for line in lines if line.count(" ") == 1)
    yield max(0, int(limit) - int(used) + int(stat.get(cache, 0))), "in this container"


def _shell_limits() -> Iterator[Limit]:
    """`ulimit -v`, which limits addresses and is therefore reached before the memory is used up."""
    if os.name != "posix":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read_text(Path("/proc/self/statm")).split()
    if soft != resource.RLIM_INFINITY and pages:
        yield max(0, soft - int(pages[0]) * resource.getpagesize()), "by `ulimit -v`"


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def format_size(number: float) -> str:
    """Bytes in MiB or GiB."""
    if number >= 2**30:
        return f"{number / 2**30:.2f} GiB"
    return f"{number / 2**20:.0f} MiB"
