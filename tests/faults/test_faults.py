"""A sample of the harness: every promise is kept, and every bug that is planted is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.faults import PLANTS, PROMISES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="processes are copied"),
]
PROGRAM = [sys.executable, "-m", "tests.faults", "--json", "--size", "sample", "--then-plant-all"]


def harness() -> dict[str, dict[str, object]]:
    """Verdicts by name. The harness runs in its own process, because it forks; promises and bugs
    in one, which share its start and the runs that nothing interrupts.
    """
    done = subprocess.run(
        PROGRAM,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout, done.stderr
    return {verdict["name"]: verdict for verdict in json.loads(done.stdout)}


def messages(verdicts: dict[str, dict[str, object]], kind: str) -> dict[str, object]:
    """The failures or errors of each verdict that has some."""
    return {name: verdict[kind] for name, verdict in verdicts.items() if verdict[kind]}


def test_every_promise_is_kept_and_every_planted_bug_is_found():
    verdicts = harness()
    assert verdicts.keys() == PROMISES.keys() | PLANTS.keys()
    trials = {name: verdicts[name]["trials"] for name in PROMISES}
    assert trials == {name: len(promise.sample) for name, promise in PROMISES.items()}
    # A bug that does not fit the code ends in another error: the promises do not find it.
    assert messages(verdicts, "errors") == {}
    assert messages(verdicts, "failures").keys() == PLANTS.keys()


def test_every_promise_has_a_bug_that_breaks_it():
    assert {plant.breaks for plant in PLANTS.values()} == set(PROMISES)
