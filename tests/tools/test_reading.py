"""The page that follows one sentence through the code is what tools/reading.py records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reading.md"


@pytest.mark.slow
def test_the_page_has_the_functions_and_values_of_a_recorded_run() -> None:
    """In a new process: in this one, caches are filled, so functions are not called."""
    command = [sys.executable, str(ROOT / "tools" / "reading.py"), "--print"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8")
    assert done.stdout.decode("utf-8") == PAGE.read_text(encoding="utf-8"), (
        "run: python tools/reading.py"
    )


def test_the_page_follows_the_sentence_from_the_file_to_the_text() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stations = re.findall(r"^- \[([\w/]+)\.py\]\(\S+\)\s+`", page, re.M)
    packages = list(dict.fromkeys(file.partition("/")[0] for file in stations))
    assert packages[:8] == "recipe train data text objectives ragged batches nn".split()
    assert 40 <= len(stations) <= 60
    trees = re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
    assert all(f"{file}.py" in "".join(trees) for file in stations)
