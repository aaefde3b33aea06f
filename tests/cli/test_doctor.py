from __future__ import annotations

import json

import pytest
import torch

from trifold.faults import PLANTS, PROMISES

pytestmark = pytest.mark.slow


def test_it_says_what_there_is(trifold):
    done = trifold("doctor")
    assert done.code == 0
    for word in ("torch", torch.__version__, "numba", "threads", "device", "memory free", "disk free", "GiB"):
        assert word in done.out
    told = json.loads(trifold("doctor", "--json").out)
    assert told["threads"] == torch.get_num_threads()
    assert told["memory_free"] > 0 and told["disk_free"] > 0


@pytest.mark.parametrize("words", [["--only", "kills"], ["--plant", "no-flush"], ["--trials", "2"]])
def test_what_belongs_to_faults_is_not_overlooked(trifold, words):
    done = trifold("doctor", *words)
    assert done.code == 2
    assert "go with --faults" in done.err


@pytest.mark.parametrize(("option", "near"), [("--only", "kills"), ("--plant", "no-flush")])
def test_an_unknown_name_is_answered_with_the_nearest(trifold, option, near):
    done = trifold("doctor", "--faults", option, near[:-1])
    assert done.code == 2
    assert f"did you mean '{near}'?" in done.err


def test_a_promise_is_tried_and_a_bug_is_found(trifold):
    kept = trifold("doctor", "--faults", "--only", "losses", "--trials", "5")
    assert kept.code == 0
    assert PROMISES["losses"].about in kept.out and "1 of 1 promises kept" in kept.out
    found = trifold("doctor", "--faults", "--plant", "ignored-count", "--trials", "20", "--json")
    (verdict,) = json.loads(found.out)
    assert (found.code, verdict["name"], verdict["trials"]) == (1, PLANTS["ignored-count"].breaks, 20)
    assert verdict["failures"]
