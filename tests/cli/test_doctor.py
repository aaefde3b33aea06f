from __future__ import annotations

import json

import pytest
import torch

pytestmark = pytest.mark.slow


def test_it_says_what_there_is(trifold):
    done = trifold("doctor")
    assert done.code == 0
    for word in ("torch", torch.__version__, "numba", "threads", "device", "memory free", "disk free", "GiB"):
        assert word in done.out
    told = json.loads(trifold("doctor", "--json").out)
    assert told["threads"] == torch.get_num_threads()
    assert told["memory_free"] > 0 and told["disk_free"] > 0


def test_the_old_option_names_its_successor(trifold):
    done = trifold("doctor", "--faults")
    assert done.code == 2
    assert "make faults" in done.err
