"""The speed of the machine, which benchmarks print beside their figures."""

from __future__ import annotations

import pytest
from tests.benchmarks.scripts import BENCHMARKS, load

pytestmark = pytest.mark.slow


def test_names_of_the_figures_are_those_that_reports_read(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load("", "machine")
    monkeypatch.setattr(machine, "SHAPES", ((8, 8, 8),))
    monkeypatch.setattr(machine, "SECONDS", 0.0)
    figures = machine.measure()
    assert list(figures) == ["fp32 8x8x8", "bf16 8x8x8", "read"]
    assert figures["read"] > 0


def test_it_is_measured_in_the_environment_of_trifold() -> None:
    scripts = [
        path for path in BENCHMARKS.rglob("run.py") if "machine.py" in path.read_text("utf-8")
    ]
    assert len(scripts) == 4
    for script in scripts:
        words = " ".join(script.read_text(encoding="utf-8").split())
        assert '[args.trifold_python, HERE.parent / "machine.py"' in words
