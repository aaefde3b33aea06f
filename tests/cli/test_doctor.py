from __future__ import annotations

import json

import pytest
import torch

pytestmark = pytest.mark.slow


def test_doctor_reports_versions_and_resources(trifold):
    done = trifold("doctor")
    assert done.code == 0
    for word in (
        "torch",
        torch.__version__,
        "numba",
        "threads",
        "device",
        "memory free",
        "disk free",
        "GiB",
    ):
        assert word in done.out
    report = json.loads(trifold("doctor", "--json").out)
    assert report["threads"] == torch.get_num_threads()
    assert not {"workers", "ranks", "compiled", "fast"} & report.keys()  # they describe a run
    assert report["memory_free"] > 0 and report["disk_free"] > 0


def test_old_option_names_its_replacement(trifold):
    done = trifold("doctor", "--faults")
    assert done.code == 2
    assert "make faults" in done.err
