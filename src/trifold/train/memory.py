"""Whether a run fits into memory: the predicted need and the available memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.recipe import Recipe
from trifold.train.distributed import SINGLE, Ranks
from trifold.train.memory_estimate import TrainingMemory, training_memory

Limit = tuple[int, str]  # available bytes, and the origin of the limit

# Bytes of optimizer state per parameter, at most.
OPTIMIZER_BYTES = {"adam": 8, "adamw": 8, "adafactor": 1, "muon": 8}


class MemoryNeed(NamedTuple):
    """The memory that a run needs, in bytes by part, and the number of parameters."""

    memory: TrainingMemory
    parameters: int


def estimate_memory(
    recipe: Recipe,
    config: ModelConfig,
    length: int,
    dtype: torch.dtype,
    workers: int,
    *,
    on_cpu: bool,
    ranks: Ranks = SINGLE,
) -> MemoryNeed:
    """The need of rank 0, which validates, for the final config and rows of about `length` tokens."""
    train, world = recipe.train, ranks.world
    with torch.device("meta"):
        parameters = Transformer(config, initialize=False).count_parameters()
    optimizer = OPTIMIZER_BYTES[train.optimizer] + (4 if train.ema else 0) + (12 if train.async_save else 0)
    memory = training_memory(
        config,
        parameters,
        recipe.batch.tokens if train.accumulate % world == 0 else -(-recipe.batch.tokens // world),
        length,
        str(dtype).removeprefix("torch."),
        workers=workers,
        optimizer=(2 if dtype is torch.float64 else 1) * optimizer,
        validation=8 + (12 if train.average > 1 else 0),  # a mean in float64
        recompute=train.recompute == "blocks",
        on_cpu=on_cpu,
        graphs=train.compile == "blocks",
        int8=train.precision == "int8",
    )
    if train.sharding == "full" and world > 1:
        memory = memory._replace(
            weights=2 * memory.weights // world,  # the shards of the model and of the master weights
            gradients=2 * memory.gradients // world,
            optimizer=memory.optimizer // world,
        )
    return MemoryNeed(memory, parameters)


def check_fits(need: MemoryNeed, recipe: Recipe, limit: Limit) -> None:
    """Raises SettingsError, naming three settings to change, if a run needs more than the available memory."""
    available, origin = limit
    memory = need.memory
    growth = memory.total - memory.runtime  # the process itself already exists
    if growth <= available:
        return
    per_parameter = (growth - memory.activations) / need.parameters
    raise SettingsError(
        f"this run needs another {_format_size(growth)} of memory; {_format_size(available)} available ({origin}). "
        f"Three settings to change: batch.tokens={recipe.batch.tokens} (activations take "
        f"{_format_size(memory.activations)}; smaller batches with train.accumulate give the same updates); "
        f"model.d_model={recipe.model.d_model} and model.n_layers={recipe.model.n_layers} "
        f"({need.parameters:,} parameters take {per_parameter:.0f} bytes each); "
        "train.workers (each has its own gradients; 1 is the minimum). "
        "train.check_memory=false skips this check"
    )


def available_memory(device: torch.device, ranks: Ranks = SINGLE) -> Limit:
    """The memory that a run may use on a device.

    On a CPU, the limits of containers and the shell apply, and the ranks of a machine share it.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], f"free on {device}"
    limits = [limit for find in (_system_limits, _container_limits, _shell_limits) for limit in find()]
    limit, origin = min(limits, default=(2**62, "unlimited"))
    if ranks.local_world == 1:
        return limit, origin
    return limit // ranks.local_world, f"{origin}, shared by {ranks.local_world} ranks"


def _system_limits() -> Iterator[Limit]:
    """MemAvailable: what Linux can provide without swapping."""
    for line in _read_text(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            yield int(amount.split()[0]) * 1024, "on this machine"


CGROUPS = Path("/sys/fs/cgroup")
# By cgroup version: the files with the limit and the usage, and the line of memory.stat that can be reclaimed.
_FILES = {
    "2": ("memory.max", "memory.current", "inactive_file"),
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _container_limits(own: Path = Path("/proc/self/cgroup")) -> Iterator[Limit]:
    """The limits of all control groups of this process; the path may be relative to another container."""
    for line in _read_text(own).splitlines():
        number, controllers, path = line.split(":", 2)
        version = "2" if number == "0" and not controllers else "1"
        if version == "1" and "memory" not in controllers.split(","):
            continue
        root = CGROUPS if version == "2" else CGROUPS / "memory"
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield from _group_limits(group, *_FILES[version])
            if group == root:
                break


def _group_limits(group: Path, limit_file: str, used_file: str, cache: str) -> Iterator[Limit]:
    limit, used = _read_text(group / limit_file).strip(), _read_text(group / used_file).strip()
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


def _format_size(number: float) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
