"""The memory of training is linear in the length of the rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "benchmarks" / "train_decoder" / "lengths.py"


@pytest.mark.slow
def test_memory_is_linear_in_length() -> None:
    """4,096 tokens, 8 heads, 2 layers: attention weights alone would take 1.1 GB in fp32."""
    done = subprocess.run(
        [sys.executable, BENCH, "--lengths", "1024,4096", "--precision", "fp32"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    short, long = (
        float(line.split("|")[2].replace(",", "")) for line in done.stdout.splitlines() if line[2:3].isdigit()
    )
    assert long < 5 * short
