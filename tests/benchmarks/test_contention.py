"""The benchmark of contention counts whole steps, and divides by the speed alone in the same
round.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from tests.benchmarks.scripts import load

contention = load("", "contention")


def test_a_share_is_the_median_of_the_ratios_of_each_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [[100.0, 50.0], [200.0, 60.0], [50.0, 10.0]]
    monkeypatch.setattr(contention, "measure", lambda *_: rounds)
    monkeypatch.setattr(contention, "HERE", tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["contention.py", "--only", "trifold-decoder-bf16", "--beside", "0,1"]
    )
    contention.main()
    assert "| trifold-decoder-bf16 | 100 | 0.30 |" in capsys.readouterr().out
    assert len(list(tmp_path.glob("results/contention-*.md"))) == 1


@pytest.mark.parametrize("load", [0.0, 1.0])
def test_a_window_counts_whole_steps_while_no_other_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: float
) -> None:
    now, used = 100.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, used
        passed = max(seconds, 0.2)
        now += passed
        used += passed * load

    monkeypatch.setattr(contention.time, "sleep", sleep)
    monkeypatch.setattr(contention.time, "monotonic", lambda: now)
    monkeypatch.setattr(contention, "foreign_seconds", lambda _: used)
    monkeypatch.setattr(contention.Runner, "_start", lambda self, args: Process())
    events: list[str] = []

    class Process:
        pid = 1

        def poll(self) -> int | None:
            # A step of 7 tokens every 0.8 seconds.
            lines = [f"{end / 10} 7\n" for end in range(1000, int(10 * now), 8)]
            measured.progress.write_text("".join(lines))
            return None

        def send_signal(self, number: int) -> None:
            events.append(contention.signal.Signals(number).name)

    measured, first, second = (
        contention.Runner("trifold-decoder-bf16", tmp_path / name, Namespace()) for name in "abc"
    )
    speed = contention.window(measured, [first, second], 1, 3.0)
    assert speed == pytest.approx(7 / 0.8)
    assert events == ["SIGCONT", "SIGSTOP"]
    assert (now - 100 > 3 * 4) == bool(load), "a disturbed window is measured again"
