"""The benchmark of contention divides by the speed alone in the same round."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.scripts import load

contention = load("", "contention")


def test_a_share_is_the_median_of_the_ratios_of_each_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = iter([100.0, 50.0, 200.0, 60.0, 50.0, 10.0])
    monkeypatch.setattr(contention, "run", lambda *_: next(speeds))
    monkeypatch.setattr(contention, "HERE", tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["contention.py", "--only", "trifold-decoder-bf16", "--beside", "0,1"]
    )
    contention.main()
    assert "| trifold-decoder-bf16 | 100 | 0.30 |" in capsys.readouterr().out
    assert len(list(tmp_path.glob("results/contention-*.md"))) == 1
