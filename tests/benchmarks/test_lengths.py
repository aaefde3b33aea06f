"""The memory of training is linear in the length of the rows."""

from __future__ import annotations

import pytest
from tests.benchmarks.scripts import run


@pytest.mark.slow
def test_memory_is_linear_in_length() -> None:
    """4,096 tokens, 8 heads, 2 layers: attention weights alone would take 1.1 GB in fp32."""
    lines = run("train_decoder/lengths.py", "--lengths", "1024,4096", "--precision", "fp32")
    short, long = (
        float(line.split("|")[2].replace(",", "")) for line in lines if line[2:3].isdigit()
    )
    assert long < 5 * short
