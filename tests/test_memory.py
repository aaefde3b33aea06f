"""The devices, and the available memory: limits of the machine, of containers and of the shell."""

from __future__ import annotations

import pytest
import torch

from trifold import memory
from trifold.errors import NotEnoughMemoryError, UsageError
from trifold.memory import available_memory, find_device, require_memory

GIB = 2**30
CPU = torch.device("cpu")


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_limits_of_outer_cgroups_count_and_reclaimable_memory_is_free(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n", encoding="utf-8")
    write(
        tmp_path / "outer",
        memory__max=f"{4 * GIB}",
        memory__current=f"{3 * GIB}",
        memory__stat=f"inactive_file {GIB}",
    )
    write(tmp_path / "outer" / "inner", memory__max=limit, memory__current="1", memory__stat="")
    assert list(memory._container_limits(own)) == [(2 * GIB, "in this container")]


def test_limit_of_a_version_1_cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/a\n4:memory:/a\n", encoding="utf-8")
    write(tmp_path / "memory", memory__limit_in_bytes="1000", memory__usage_in_bytes="400",
          memory__stat="total_inactive_file 100")  # fmt: skip
    assert list(memory._container_limits(own)) == [(700, "in this container")]


def test_available_memory_is_the_lowest_limit(monkeypatch):
    monkeypatch.setattr(memory, "_system_limits", lambda: [(5, "a")])
    monkeypatch.setattr(memory, "_container_limits", lambda: [(3, "b"), (9, "c")])
    monkeypatch.setattr(memory, "_shell_limits", lambda: [])
    assert available_memory(CPU) == (3, "b")


def test_a_request_beyond_the_available_memory_is_an_error(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: (3 * GIB, "in this container"))
    require_memory(3 * GIB, CPU, "two texts", "read one")
    message = (
        r"^two texts need 3\.00 GiB of memory; 3\.00 GiB available \(in this container\); read one$"
    )
    with pytest.raises(NotEnoughMemoryError, match=message):
        require_memory(3 * GIB + 1, CPU, "two texts", "read one")
    # Small requests do not ask the system.
    monkeypatch.setattr(memory, "available_memory", lambda device: (0, ""))
    require_memory(memory.UNCHECKED, CPU, "a text", "")


def test_ulimit_is_a_limit():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
        ((left, origin),) = memory._shell_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert 0 < left < 2**40 and "ulimit" in origin


def test_processes_share_the_available_memory(monkeypatch):
    monkeypatch.setattr(memory, "_system_limits", lambda: [(4 * GIB, "on this machine")])
    monkeypatch.setattr(memory, "_container_limits", lambda: [])
    assert available_memory(CPU, 4) == (GIB, "on this machine, shared by 4 ranks")


# --- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["cuda", "mps", "cpu"])
def test_auto_prefers_an_accelerator_and_cpu_is_always_available(monkeypatch, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: found == "mps")
    assert find_device("auto").type == found
    assert find_device("cpu").type == "cpu"


def test_unavailable_device_error_lists_the_available_ones(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        UsageError, match=r"device 'cuda:3' is not available; available devices: cpu$"
    ):
        find_device("cuda:3")
    with pytest.raises(UsageError, match=r"unknown device 'gpu'; use auto, cpu, cuda"):
        find_device("gpu")
