"""Ratios and tables of the side-by-side benchmark of generation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.benchmarks.scripts import BENCHMARKS, load

report, setting = (load("generate", name) for name in ("report", "setting"))


def line(name: str, precision: str, best: float, work: str = "greedy-1") -> dict[str, object]:
    return {
        **{
            "name": name,
            "precision": precision,
            "work": work,
            "best": best,
            "middle": best,
            "first": best,
        },
        "peak_rss_mb": 1.0,
    }


LINES = [
    *(line("trifold", "bf16", best) for best in (100.0, 180.0, 170.0)),
    *(line("trifold", "int8", best) for best in (200.0, 260.0, 250.0)),
    *(line("Hugging Face", "fp32", best) for best in (30.0, 50.0, 40.0)),
    line("Hugging Face", "bf16", 60.0),
    line("CTranslate2", "int8", 80.0),
    line("CTranslate2", "fp32", 125.0),
]


def test_a_ratio_compares_the_best_medians_of_both_sides() -> None:
    found = {target.label: ratio for target, ratio in report.ratios(LINES)}
    assert found["best of ours / Hugging Face fp32"] == 250 / 40
    assert found["best of ours / best of CTranslate2"] == 2.0
    assert found["ours bf16 / llama.cpp bf16"] is None  # not measured
    llama = [*LINES, line("llama.cpp", "bf16", 200.0), line("llama.cpp", "q8_0", 125.0)]
    found = {target.label: ratio for target, ratio in report.ratios(llama)}
    assert found["ours bf16 / llama.cpp bf16"] == 0.85
    assert found["ours int8 / llama.cpp q8_0"] == 2.0


def test_the_table_has_all_engines_and_all_requested_ratios() -> None:
    text = report.tables(LINES, ["greedy-1"])
    rows = [
        [cell.strip() for cell in row.split("|")[1:4]]
        for row in text.splitlines()
        if row.startswith("| ")
    ]
    assert rows[1:4] == [
        ["trifold", "int8", "250"],
        ["trifold", "bf16", "170"],
        ["CTranslate2", "fp32", "125"],
    ]
    for target in report.RATIOS:
        assert (target.label in text) == (target.work == "greedy-1")
    assert text.count("not measured") == 2


def test_prompts_are_reproducible() -> None:
    for work in setting.WORKS.values():
        rows = setting.prompts(work)
        assert rows == setting.prompts(work)
        assert [len(row) for row in rows] == [work.width] * work.rows


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_peak_memory_of_a_runner_is_not_that_of_its_parent() -> None:
    large = bytearray(300 * 2**20)  # all written, with zeros
    large[:: 2**12] = bytes(len(large[:: 2**12]))
    code = "from peak_memory import peak_mb; print(peak_mb())"
    runner = [sys.executable, "-c", code]
    done = subprocess.run(runner, cwd=BENCHMARKS, check=True, stdout=subprocess.PIPE, text=True)
    assert 5 < float(done.stdout) < 100
