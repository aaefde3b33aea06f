"""A sample of the harness: every promise is kept, and every bug that is planted is found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from tests.faults import PLANTS, PROMISES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="processes are copied"),
]
# A bug that does not fit the code is no bug that the promises find.
INTERNAL_ERROR = re.compile(r"trial \d+: (Assertion|Attribute|Import|Name|Type)Error")
PROGRAM = [sys.executable, "-m", "tests.faults", "--json"]


def harness(*words: str) -> dict[str, dict[str, object]]:
    """Verdicts by name. The harness runs in its own process, because it forks."""
    done = subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout, done.stderr
    return {verdict["name"]: verdict for verdict in json.loads(done.stdout)}


def test_every_promise_is_kept():
    sample = harness("--size", "sample")
    assert {name: verdict["trials"] for name, verdict in sample.items()} == {
        name: promise.sample for name, promise in PROMISES.items()
    }
    assert {
        name: verdict["failures"] for name, verdict in sample.items() if verdict["failures"]
    } == {}


def test_every_planted_bug_is_found():
    found = harness("--plant", "all")
    assert found.keys() == PLANTS.keys()
    assert [name for name, verdict in found.items() if not verdict["failures"]] == []
    errors_of_plants = {
        name: verdict["failures"]
        for name, verdict in found.items()
        if INTERNAL_ERROR.search(str(verdict["failures"]))
    }
    assert errors_of_plants == {}


def test_every_promise_has_a_bug_that_breaks_it():
    assert {plant.breaks for plant in PLANTS.values()} == set(PROMISES)
