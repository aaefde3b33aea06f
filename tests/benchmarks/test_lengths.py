"""The memory of training is linear in the length of the rows."""

from __future__ import annotations

import pytest
from tests.benchmarks.scripts import run


@pytest.mark.slow
def test_memory_is_linear_in_length() -> None:
    """A row of 4,096 tokens takes less than the attention weights of one of the two layers."""
    lines = run("train_decoder/lengths.py", "--lengths", "4096", "--precision", "fp32")
    (peak,) = (float(line.split("|")[2].replace(",", "")) for line in lines if line[2:3].isdigit())
    heads, length, bytes_each = 8, 4096, 4
    assert peak * 1e6 < heads * length**2 * bytes_each
