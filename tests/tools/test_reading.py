"""The page that follows one sentence through the code is what tools/reading.py records.

Real numbers differ in the last digits between machines, and those of the trained model in more,
because Adam divides small gradients by their size. Tokens, shapes and functions do not.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reading.md"
NUMBER = re.compile(r"−?\d+(?:\.\d+)?(?:e[−+]?\d+)?")
TRAINED = "### Validation and saving"  # the values below this line are those of the trained model


@pytest.mark.slow
def test_the_page_has_the_functions_and_values_of_a_recorded_run() -> None:
    """In a new process: in this one, caches are filled, so functions are not called."""
    command = [sys.executable, str(ROOT / "tools" / "reading.py"), "--print"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    recorded = done.stdout.decode("utf-8")
    page = PAGE.read_text(encoding="utf-8")
    assert _words(recorded) == _words(page), "run: python tools/reading.py"
    for ours, theirs in zip(recorded.split(TRAINED), page.split(TRAINED), strict=True):
        is_trained = page.endswith(theirs)
        for one, other in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
            assert _agree(one, other, is_trained=is_trained), "run: python tools/reading.py"


def _words(page: str) -> list[str]:
    """The words of a page, however they are wrapped, without the values of its numbers."""
    return NUMBER.sub("#", page).split()


def _agree(one: str, other: str, *, is_trained: bool) -> bool:
    """Whether numbers are equal, or real numbers that another machine may compute so."""
    if one == other:
        return True
    is_real = "." in one + other or "e" in one + other
    if is_trained or not is_real:
        return is_real
    first, second = (float(number.replace("−", "-")) for number in (one, other))
    return math.isclose(first, second, rel_tol=0.02, abs_tol=1e-4)


@pytest.mark.parametrize(
    ("one", "other", "is_trained", "agrees"),
    [
        ("0.506", "0.507", False, True),
        ("2", "1.99", False, True),
        ("−0.506", "0.506", False, False),
        ("5", "6", False, False),
        ("5", "6", True, False),
        ("0.5", "0.9", True, True),
    ],
)
def test_real_numbers_may_differ_in_the_last_digits(
    one: str, other: str, is_trained: bool, agrees: bool
) -> None:
    assert _agree(one, other, is_trained=is_trained) is agrees


def test_the_page_follows_the_sentence_from_the_file_to_the_text() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stations = re.findall(r"^- \[([\w/]+)\.py\]\(\S+\)\s+`", page, re.M)
    packages = list(dict.fromkeys(file.partition("/")[0] for file in stations))
    assert packages[:8] == "recipe train data text objectives ragged batches nn".split()
    assert 40 <= len(stations) <= 60
    trees = re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
    assert all(f"{file}.py" in "".join(trees) for file in stations)
