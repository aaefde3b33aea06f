"""The checks of `trifold doctor`: packages, extras, processor, threads, memory, disks and GPU."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from packaging.requirements import Requirement

import trifold
from trifold.data.catalog import data_folder
from trifold.errors import plural
from trifold.fast import compiled_block, compiled_interpreter, compiled_loops
from trifold.fast.instruction_sets import instruction_set
from trifold.fast.int8_training import int8_training_obstacle
from trifold.fast.matmul import VARIABLE, library
from trifold.installation import (
    DISTRIBUTION,
    extras,
    install_command,
    installed_version,
    is_satisfied,
    pip_command,
    python_range,
    requirements,
)
from trifold.memory import available_memory, format_size
from trifold.train.device import choose_precision, multiplies_bf16_fast

Level = Literal["ok", "note", "warning", "error"]
# Bytes below which a run fails soon, and below which it may.
DISK = (100 * 2**20, 2 * 2**30)
MEMORY = (512 * 2**20, 2 * 2**30)

# Extra -> what it is for.
PURPOSES = {
    "plots": "pictures of `look`, TensorBoard",
    "fast": "faster training on a CPU",
    "datasets": "datasets of the hub, Parquet files",
    "excel": "tables in Excel workbooks (.xlsx)",
    "zst": "text compressed with zstd",
    "vision": "images",
    "web": "the live page of `look`",
}


class Check(NamedTuple):
    """One line of the report.

    level: `error` if the installation does not work without a change. remedy: what to change,
    unless the level is `ok`.
    """

    section: str
    name: str
    value: str
    level: Level = "ok"
    remedy: str = ""


def all_checks(device: torch.device) -> list[Check]:
    """Every check but the speed test."""
    found = [*_packages(), *_extras()]
    found += [*_processor(), _gpu(device), *_memory(), *_disks()]
    return found


# --- packages -------------------------------------------------------------------------------------


def _packages() -> Iterator[Check]:
    section = "packages"
    yield Check(section, DISTRIBUTION, f"{trifold.__version__} in {Path(trifold.__file__).parent}")
    version = platform.python_version()
    supported = python_range()
    if supported.contains(version, prereleases=True):
        yield Check(section, "python", f"{version} ({supported})")
    else:
        remedy = f"make an environment with Python {supported}, and install {DISTRIBUTION} there"
        yield Check(section, "python", f"{version}, outside {supported}", "error", remedy)
    for one in requirements():
        version_found = installed_version(one.name)
        text = f"{version_found or 'missing'} ({one.specifier})"
        if is_satisfied(one):
            yield Check(section, one.name, text)
        else:
            yield Check(section, one.name, text, "error", f"run `{install_command()}`")
    yield from _foreign_package()


def _foreign_package() -> Iterator[Check]:
    """The package `trifold` of another project, which has the same modules and command."""
    version = installed_version("trifold")
    if version is not None:
        command = pip_command("uninstall", "trifold")
        remedy = (
            f"run `{command}`, and install {DISTRIBUTION} again, because both have the same "
            "command and module"
        )
        value = f"{version}, another package than {DISTRIBUTION}"
        yield Check("packages", "trifold", value, "warning", remedy)


def _extras() -> Iterator[Check]:
    for extra in extras():
        wrong = [one for one in requirements(extra) if not is_satisfied(one)]
        purpose = PURPOSES.get(extra, "")
        if not wrong:
            yield Check("extras", extra, f"installed: {purpose}")
            continue
        yield Check("extras", extra, f"{_lack(wrong)}: {purpose}", "note", install_command(extra))


def _lack(wrong: Sequence[Requirement]) -> str:
    """Such as `starlette and uvicorn missing`, or `numba 0.50 out of range`."""
    versions = {one.name: installed_version(one.name) for one in wrong}
    missing = [name for name, version in versions.items() if version is None]
    parts = [f"{name} {version} out of range" for name, version in versions.items() if version]
    if missing:
        parts.insert(0, f"{' and '.join(missing)} missing")
    return ", ".join(parts)


# --- the machine ----------------------------------------------------------------------------------


# Instructions of the processor by PyTorch's function that finds them -> their name.
INSTRUCTIONS = {
    "_is_avx2_supported": "AVX2",
    "_is_avx512_supported": "AVX-512",
    "_is_vnni_supported": "AVX-512 VNNI",
    "_is_avx512_bf16_supported": "AVX-512 BF16",
    "_is_amx_tile_supported": "AMX",
}


def instructions() -> list[str]:
    """The names of the processor's instructions that change what trifold does."""
    return [
        name
        for function, name in INSTRUCTIONS.items()
        if getattr(torch.cpu, function, lambda: False)()
    ]


def processor_name() -> str:
    """Such as `AMD EPYC`."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Library of matmuls in float32 -> how it is described.
MATMUL = {
    "onednn": f"oneDNN for large matrices ({VARIABLE}=pytorch: never)",
    "pytorch": "the library of PyTorch's operators",
}


def _processor() -> Iterator[Check]:
    section = "processor"
    yield Check(section, "processor", f"{processor_name()}, {platform.machine()}")
    found = instructions()
    yield Check(section, "instructions", ", ".join(found) or "none beyond the basic ones")
    cpu = torch.device("cpu")
    precision = str(choose_precision("auto", cpu)).removeprefix("torch.")
    reason = "no instructions for bfloat16"
    if multiplies_bf16_fast(cpu):
        reason = "which this processor multiplies faster than float32"
    yield Check(section, "arithmetic", f"{precision} by default: {reason}")
    yield Check(section, "matmul in float32", MATMUL[library()])
    obstacle = int8_training_obstacle(cpu)
    text = f"not available: {obstacle}" if obstacle else "available (train.precision=int8)"
    yield Check(section, "int8 training", text)
    loops = "used in training" if compiled_loops() else "not available without the extra `fast`"
    yield Check(section, "compiled loops", loops)
    decoding = (
        "used in generation" if compiled_interpreter() else "not available, see the line above"
    )
    yield Check(section, "compiled decoding", decoding)
    yield Check(section, "compiled encoders", _encoder_products())
    yield _threads()


def _encoder_products() -> str:
    """The precisions in which the layers of encoders are compiled, and for what."""
    found = instruction_set()
    if found is None or compiled_block() is None:
        return "the operators of PyTorch are used"
    return f"{', '.join(found.products)}, by {found.name}"


def usable_cores() -> float:
    """The cores that this process may use: of the machine, its affinity and its container."""
    cores = float(os.cpu_count() or 1)
    with suppress(AttributeError):
        cores = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        cores = min(cores, float(quota) / float(period))  # ValueError for "max"
    return cores


def _threads() -> Check:
    threads = torch.get_num_threads()
    cores = usable_cores()
    value = f"{threads} of {plural(ceil(cores), 'core')}"
    if threads > ceil(cores):
        remedy = f"set OMP_NUM_THREADS={ceil(cores)}: threads that share a core wait for each other"
        return Check("processor", "threads", value, "warning", remedy)
    if "OMP_NUM_THREADS" in os.environ:
        value += f" (OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']})"
    return Check("processor", "threads", value)


def _memory() -> Iterator[Check]:
    free, origin = available_memory(torch.device("cpu"))
    if origin == "unlimited":
        yield Check("memory and disks", "memory free", "not known on this system")
        return
    value = f"{format_size(free)} {origin}"
    remedy = "end other programs, or raise the limit; batch.tokens and model.d_model need less"
    yield Check("memory and disks", "memory free", value, _level(free, MEMORY), remedy)


def _level(size: int, limits: tuple[int, int]) -> Level:
    least, enough = limits
    if size < least:
        return "error"
    if size < enough:
        return "warning"
    return "ok"


def _disks() -> Iterator[Check]:
    folders = {
        "runs": (Path("runs"), "free some space, or write runs elsewhere with --out"),
        "temporary files": (Path(tempfile.gettempdir()), "free some space, or set TMPDIR"),
        "data": (data_folder(), "free some space, or set TRIFOLD_DATA"),
    }
    for name, (folder, remedy) in folders.items():
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        try:
            free = shutil.disk_usage(existing).free
        except OSError as error:
            yield Check("memory and disks", name, f"{folder}: {error.strerror}", "error", remedy)
            continue
        value = f"{format_size(free)} free at {folder}"
        if os.access(existing, os.W_OK):
            yield Check("memory and disks", name, value, _level(free, DISK), remedy)
            continue
        level: Level = "error"
        if name == "data":
            level = "note"  # read-only data are complete, or the download reports it
        remedy_of_rights = f"make {existing} writable, or {remedy.partition(', or ')[2]}"
        yield Check(
            "memory and disks", name, f"{existing} is not writable", level, remedy_of_rights
        )


NVIDIA = Path("/proc/driver/nvidia/version")


def _gpu(device: torch.device) -> Check:
    """The GPU, or why an existing one is not used."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        count = torch.cuda.device_count()
        text = f"{properties.name}, {format_size(properties.total_memory)}"
        return Check("processor", "GPU", f"{text}; {plural(count, 'GPU')}")
    if device.type == "mps":
        return Check("processor", "GPU", "Apple GPU (mps)")
    if NVIDIA.exists() or shutil.which("nvidia-smi"):
        remedy = f"install a build of PyTorch with CUDA for its driver; this is {torch.__version__}"
        return Check("processor", "GPU", "an NVIDIA GPU that PyTorch cannot use", "warning", remedy)
    return Check("processor", "GPU", "none; the CPU is used")
