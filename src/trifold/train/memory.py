"""Does a run fit? What it is predicted to need against what there is, before hours of waiting for its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.recipe import Recipe
from trifold.train.memory_estimate import TrainingMemory, training_memory
from trifold.train.ranks import ALONE, Ranks

Limit = tuple[int, str]  # bytes that may still be taken, and whose limit that is


# Bytes a parameter that an optimiser remembers, at the most.
MOMENTS = {"adam": 8, "adamw": 8, "adafactor": 1, "muon": 8}


class Need(NamedTuple):
    """What a run needs, in bytes by part, and how many parameters its model has."""

    memory: TrainingMemory
    parameters: int


def needed(
    recipe: Recipe,
    config: ModelConfig,
    length: int,
    dtype: torch.dtype,
    workers: int,
    *,
    on_cpu: bool,
    ranks: Ranks = ALONE,
) -> Need:
    """Of a recipe, with the config as its tokenizers make it and rows of about `length` tokens; of the rank that needs
    most, which is the one that validates.
    """
    train = recipe.train
    with torch.device("meta"):
        parameters = Transformer(config, initialize=False).count_parameters()
    wide = 2 if dtype is torch.float64 else 1  # of master weights and moments, against float32
    memory = training_memory(
        config,
        parameters,
        recipe.batch.tokens
        if train.accumulate % ranks.world == 0
        else -(-recipe.batch.tokens // ranks.world),
        length,
        str(dtype).removeprefix("torch."),
        workers=workers,
        optimizer=wide
        * (MOMENTS[train.optimizer] + (4 if train.ema else 0) + (12 if train.async_save else 0)),
        validation=8 + (12 if train.average > 1 else 0),  # a mean in float64
        recompute=train.recompute == "blocks",
        on_cpu=on_cpu,
        graphs=train.compile == "blocks",
        by_bytes=train.precision == "int8",
    )
    if train.sharding == "full" and ranks.world > 1:
        memory = memory._replace(
            weights=2 * memory.weights // ranks.world,  # the model's parts, and the master's
            gradients=2 * memory.gradients // ranks.world,
            optimizer=memory.optimizer // ranks.world,
        )
    return Need(memory, parameters)


def check_fits(need: Need, recipe: Recipe, limit: Limit) -> None:
    """Raises SettingsError, naming the three settings to change, where a run needs more than there is."""
    there, whose = limit
    memory = need.memory
    growth = memory.total - memory.runtime  # the process stands already
    if growth <= there:
        return
    per_parameter = (growth - memory.activations) / need.parameters
    raise SettingsError(
        f"this run is predicted to need {_size(growth)} of memory more, and there are {_size(there)} ({whose}). "
        f"Three settings to change: batch.tokens={recipe.batch.tokens} (its activations take "
        f"{_size(memory.activations)}; smaller batches with train.accumulate learn the same); "
        f"model.d_model={recipe.model.d_model} and model.n_layers={recipe.model.n_layers} "
        f"({need.parameters:,} parameters take {per_parameter:.0f} bytes each); "
        "train.workers (each has gradients of its own; 1 is the least). "
        "train.check_memory=false begins nevertheless"
    )


def there_is(device: torch.device, ranks: Ranks = ALONE) -> Limit:
    """The memory that a run may still take on a device; on a CPU also within the limits of a container or a shell, and
    shared with the other ranks of the machine.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], f"free on {device}"
    limits = [limit for find in (_system, _containers, _shell) for limit in find()]
    limit, whose = min(limits, default=(2**62, "unlimited"))
    return (
        (limit, whose)
        if ranks.beside == 1
        else (limit // ranks.beside, f"{whose}, shared by {ranks.beside} ranks")
    )


def _system() -> Iterator[Limit]:
    """MemAvailable: what Linux would give without swapping."""
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            yield int(amount.split()[0]) * 1024, "available on this machine"


CGROUPS = Path("/sys/fs/cgroup")
# By version of control groups: file of the limit, of what is used, and the line of memory.stat that can be taken back.
_FILES = {
    "2": ("memory.max", "memory.current", "inactive_file"),
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _containers(own: Path = Path("/proc/self/cgroup")) -> Iterator[Limit]:
    """Of every control group that this process is in; the innermost that is told may be another container's view."""
    for line in _text(own).splitlines():
        number, controllers, path = line.split(":", 2)
        version = "2" if number == "0" and not controllers else "1"
        if version == "1" and "memory" not in controllers.split(","):
            continue
        root = CGROUPS if version == "2" else CGROUPS / "memory"
        inner = root / path.lstrip("/")
        for group in (inner, *inner.parents):
            yield from _group(group, *_FILES[version])
            if group == root:
                break


def _group(group: Path, limit_file: str, used_file: str, cache: str) -> Iterator[Limit]:
    limit, used = _text(group / limit_file).strip(), _text(group / used_file).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= 2**60:
        return
    stat = dict(line.split() for line in _text(group / "memory.stat").splitlines() if line.count(" ") == 1)
    yield max(0, int(limit) - int(used) + int(stat.get(cache, 0))), "left to this container"


def _shell() -> Iterator[Limit]:
    """`ulimit -v`: of addresses, so it is used up sooner than memory is."""
    if os.name != "posix":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text(Path("/proc/self/statm")).split()
    if soft != resource.RLIM_INFINITY and pages:
        yield max(0, soft - int(pages[0]) * resource.getpagesize()), "left by `ulimit -v`"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _size(number: float) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
