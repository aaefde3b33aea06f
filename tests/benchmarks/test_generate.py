"""Laws of the side-by-side bench of generation: ratios are what they say, and every wanted one is printed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks" / "generate"


def load(name: str) -> ModuleType:
    """A module of the benchmark, which is a folder of scripts and no package; its neighbours are forgotten."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(FOLDER))
        for new in set(sys.modules) - before:
            if Path(getattr(sys.modules[new], "__file__", None) or "/").parent == FOLDER:
                del sys.modules[new]


report, setting = map(load, ("report", "setting"))


def line(name: str, precision: str, best: float, work: str = "greedy-1") -> dict[str, object]:
    return {
        **{"name": name, "precision": precision, "work": work, "best": best, "middle": best, "first": best},
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


def test_a_ratio_is_the_best_of_ours_over_the_best_of_theirs_at_the_median() -> None:
    found = {wanted.said: ratio for wanted, ratio in report.ratios(LINES)}
    assert found["best of ours / Hugging Face fp32"] == 250 / 40
    assert found["best of ours / best of CTranslate2"] == 2.0
    assert found["ours bf16 / llama.cpp bf16"] is None  # not measured
    llama = [*LINES, line("llama.cpp", "bf16", 200.0), line("llama.cpp", "q8_0", 125.0)]
    found = {wanted.said: ratio for wanted, ratio in report.ratios(llama)}
    assert found["ours bf16 / llama.cpp bf16"] == 0.85
    assert found["ours int8 / llama.cpp q8_0"] == 2.0


def test_the_table_has_every_engine_and_every_wanted_ratio() -> None:
    text = report.tables(LINES, ["greedy-1"])
    rows = [
        [cell.strip() for cell in row.split("|")[1:4]] for row in text.splitlines() if row.startswith("| ")
    ]
    assert rows[1:4] == [
        ["trifold", "int8", "250"],
        ["trifold", "bf16", "170"],
        ["CTranslate2", "fp32", "125"],
    ]
    for wanted in report.WANTED:
        assert (wanted.said in text) == (wanted.work == "greedy-1")
    assert text.count("not measured") == 2


def test_prompts_are_the_same_for_everybody() -> None:
    for work in setting.WORKS.values():
        rows = setting.prompts(work)
        assert rows == setting.prompts(work)
        assert [len(row) for row in rows] == [work.width] * work.rows
