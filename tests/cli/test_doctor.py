"""`trifold doctor`: what it reports, every warning and error with its remedy, and the exit code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement

import trifold as trifold_package
from trifold import installation
from trifold.cli import checks, speed
from trifold.cli.doctor import speed_checks
from trifold.cli.speed import Speed, SpeedTest
from trifold.fast import matmul
from trifold.fast.instruction_sets import SETS
from trifold.installation import extras, install_command, pip_command

pytestmark = pytest.mark.slow
ALONE = SpeedTest([Speed("matmul, float32", 90.0, "GFLOP/s", 83.2, "32 × 2.6")], 0.95)


@pytest.fixture(autouse=True)
def healthy(monkeypatch):
    """A machine on which nothing is wrong, whatever runs the tests."""
    monkeypatch.setattr(speed, "measure", lambda device: ALONE)
    monkeypatch.setattr(checks, "available_memory", lambda device: (2**33, "on this machine"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**33))
    monkeypatch.setattr(checks, "installed_version", lambda name: OTHER.get(name, "99.0"))
    monkeypatch.setattr(checks, "is_satisfied", lambda one: True)
    monkeypatch.setattr(checks, "NVIDIA", Path("none"))
    monkeypatch.setattr(shutil, "which", lambda name: None)


OTHER: dict[str, str | None] = {"trifold": None}


def test_report_of_a_healthy_installation(trifold):
    done = trifold("doctor")
    assert done.code == 0
    words = ("torch", "trifold-transformer", "threads", "AVX", "GPU", "memory free", "data", "web")
    assert all(word in done.out for word in words)
    assert "90.0 GFLOP/s" in done.out and "83.2" in done.out
    assert done.err.splitlines()[-1] == "nothing is wrong with this installation"
    path = str(Path(trifold_package.__file__).parent)
    assert path in done.out  # in one piece
    lines = (done.out + done.err).splitlines()
    assert max(len(line) for line in lines if path not in line) <= max(80, 22 + len(path))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (SETS[0], "float32, bfloat16, int8, by AVX-512"),
        (SETS[1], "float32, int8, by AVX-512"),
        (SETS[2], "float32, int8, by AVX2"),
        (None, "the operators of PyTorch are used"),
    ],
)
def test_report_of_the_compiled_layers(found, text, monkeypatch):
    monkeypatch.setattr(checks, "instruction_set", lambda: found)
    monkeypatch.setattr(checks, "compiled_block", object)
    assert {each.name: each.value for each in checks._processor()}["compiled encoders"] == text


def test_json(trifold):
    report = json.loads(trifold("doctor", "--json").out)
    assert report["threads"] == torch.get_num_threads()
    assert not {"workers", "ranks", "compiled", "fast"} & report.keys()  # they describe a run
    assert report["fp32_matmul"] == matmul.library()
    assert report["memory_free"] > 0 and report["disk_free"] > 0 and report["ok"] is True
    assert {"AVX2"} >= set(report["instructions"][:1])
    assert report["speed"]["speeds"][0]["expected"] == 83.2
    assert {check["section"] for check in report["checks"]} > {"packages", "extras", "processor"}
    report = json.loads(trifold("doctor", "--json", "--no-speed").out)
    assert report["speed"] is None


def satisfied_but(*names: str):
    return lambda one: one.name not in names


def slow(**values):
    return lambda device: ALONE._replace(**values)


SLOW = [ALONE.speeds[0]._replace(value=20.0)]
# What is replaced in which module -> the exit code, and the message.
CASES = [
    ((checks, "is_satisfied", satisfied_but("torch")), 1, "error: torch: 99.0 (>=2.11); run `"),
    (
        (checks, "python_range", lambda: Requirement("python>=3.99").specifier),
        1,
        "outside >=3.99; make an environment with Python >=3.99, and install trifold-transformer there",
    ),
    (
        (checks, "installed_version", lambda name: "0.4.4"),
        0,
        "warning: trifold: 0.4.4, another package than trifold-transformer; run "
        f"`{pip_command('uninstall', 'trifold')}`, and install trifold-transformer again",
    ),
    (
        (torch, "get_num_threads", lambda: 4096),
        0,
        "warning: threads: 4096 of ",
    ),
    (
        (checks, "available_memory", lambda device: (2**30, "in this container")),
        0,
        "warning: memory free: 1.00 GiB in this container; end other programs, or raise the limit",
    ),
    (
        (checks, "available_memory", lambda device: (2**20, "by `ulimit -v`")),
        1,
        "error: memory free: 1 MiB by `ulimit -v`; end other programs",
    ),
    (
        (shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30)),
        0,
        "warning: runs: 1.00 GiB free at runs; free some space, or write runs elsewhere with --out",
    ),
    (
        (shutil, "disk_usage", lambda path: SimpleNamespace(free=0)),
        1,
        "; free some space, or set TMPDIR",
    ),
    (
        (os, "access", lambda path, mode: False),
        1,
        "is not writable; make ",
    ),
    (
        (shutil, "which", lambda name: f"/usr/bin/{name}"),
        0,
        "warning: GPU: an NVIDIA GPU that PyTorch cannot use; install a build of PyTorch with CUDA",
    ),
    (
        (speed, "measure", slow(share=0.2)),
        0,
        "warning: speed test: the test got 20% of the time of its cores; end other programs and "
        "repeat it; the speeds above are too low",
    ),
    (
        (speed, "measure", slow(speeds=SLOW)),
        0,
        "warning: matmul, float32: 20.0 of 83.2 GFLOP/s; look for other programs",
    ),
]


@pytest.mark.parametrize(("replaced", "code", "message"), CASES)
def test_findings(trifold, monkeypatch, replaced, code, message):
    monkeypatch.setattr(*replaced)
    done = trifold("doctor")
    assert (done.code, "Traceback" in done.err) == (code, False)
    assert message in " ".join(done.err.split())
    assert "nothing is wrong" not in done.err


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ({}, "matplotlib and tensorboard missing"),
        ({"matplotlib": "1.0"}, "tensorboard missing, matplotlib 1.0 out of range"),
        (
            {"matplotlib": "1.0", "tensorboard": "2.0"},
            "matplotlib 1.0 out of range, tensorboard 2.0 out of range",
        ),
    ],
)
def test_what_an_extra_lacks(monkeypatch, versions, text):
    monkeypatch.setattr(checks, "is_satisfied", lambda one: False)
    monkeypatch.setattr(checks, "installed_version", versions.get)
    (found,) = (check for check in checks._extras() if check.name == "plots")
    assert found.value == f"{text}: {checks.PURPOSES['plots']}"


def test_a_low_speed_names_the_extra_for_it_only_where_it_is_missing(monkeypatch):
    for is_installed in (True, False):
        monkeypatch.setattr(installation, "is_satisfied", lambda one, found=is_installed: found)
        (check,) = speed_checks(ALONE._replace(speeds=SLOW))
        command = f"install the extra fast: `{install_command('fast')}`"
        assert (command in check.remedy) != is_installed


@pytest.mark.parametrize("extra", extras())
def test_the_command_of_every_missing_extra_is_printed(trifold, monkeypatch, extra):
    names = [one.name for one in checks.requirements(extra)]
    monkeypatch.setattr(checks, "is_satisfied", satisfied_but(*names))
    done = trifold("doctor", "--no-speed")
    assert done.code == 0
    if names:  # none on a Python that includes the package
        assert f"extra {extra}: `{install_command(extra)}`" in " ".join(done.err.split())
    assert extra in checks.PURPOSES


def test_speed_of_this_machine():
    found = speed._speeds(torch.device("cpu"), 0.0)
    assert [one.unit for one in found][-2:] == ["GB/s", "steps/s"]
    assert all(one.value > 0 for one in found)
    assert found[-1].expected is not None and "reference machine" in found[-1].basis
    assert torch.get_num_threads() == 1  # as before


def test_an_unknown_clock_gives_no_expected_speed(monkeypatch):
    monkeypatch.setattr(speed, "clock_gigahertz", lambda: None)
    one = speed.matmul_speed(torch.float32, torch.device("cpu"), 0.0)
    assert (one.expected, one.is_low) == (None, False)


def test_usable_cores_follow_the_quota_of_the_container(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(checks, "Path", lambda name: tmp_path / Path(name).name)
    assert checks.usable_cores() == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert checks.usable_cores() == 8


def test_old_option_names_its_replacement(trifold):
    done = trifold("doctor", "--faults")
    assert done.code == 2
    assert "make faults" in done.err


def test_documented_figures_are_those_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text(encoding="utf-8")
    bf16, fp32 = (speed.STEP_TO_MATMULS[dtype] for dtype in (torch.bfloat16, torch.float32))
    for text in (
        f"{speed.PER_CYCLE} operations a cycle",
        f"{speed.READ_PER_THREAD:g} GB/s a thread",
        f"{bf16} times its matmuls at the measured speed in bfloat16, {fp32} times in float32",
        f"below {speed.LEAST:.0%}".replace("%", " %"),
        f"less than {speed.LEAST_SHARE:.0%}".replace("%", " %"),
    ):
        assert text in page
