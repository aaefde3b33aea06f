"""A sample of hostile folders has no faults, and the watch finds every kind of fault."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.hostile import json_values, mutations
from tests.hostile.json_values import CANARY
from tests.hostile.mutations import Tree
from tests.hostile.trials import faults_of
from tests.hostile.watch import Place, watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and forks"),
]
MEMORY = 2**25
FOLDERS = 28  # four of each kind; `make faults` tries 10,000
KINDS = ("gpt2", "shards", "marian", "hub cache", "adapter", "sentences", "reader classify")


def test_a_sample_of_hostile_folders_has_no_faults():
    kinds = [word for kind in KINDS for word in ("--kind", kind)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.hostile",
            "--folders",
            str(FOLDERS),
            "--processes",
            "1",
            "--json",
            *kinds,
        ],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == FOLDERS and {one["code"] for one in found} >= {0, 1}
    assert [one for one in found if one["faults"]] == []


def say(text: str, code: int = 0, stream: int = 2) -> Callable[[], int]:
    def work() -> int:
        os.write(stream, text.encode())
        return code

    return work


def allocate() -> int:
    # Not from the C library, which may have kept so much memory of earlier tests.
    with mmap.mmap(-1, MEMORY * 2) as memory:
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
    return 0


def fail() -> int:
    raise ValueError("evil")


def follow() -> int:
    Path("link").symlink_to("../outside/secret.txt")
    return len(Path("link").read_text(encoding="utf-8")) * 0


def write_beside() -> int:
    Path("../beside").write_text("x", encoding="utf-8")
    return 0


def connect() -> int:
    with socket.socket() as one:
        one.settimeout(0.01)
        one.connect_ex(("127.0.0.1", 9))
    return 0


def read_without_python() -> int:
    import ctypes

    return 0 * ctypes.CDLL(None).open(b"../outside/secret.txt", 0)


def end_by_signal() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def wait_for_a_pipe() -> int:
    os.mkfifo("pipe")
    return len(Path("pipe").read_bytes())


# What a process does -> the kinds of its faults.
BAD: dict[str, tuple[Callable[[], int], set[str]]] = {
    "nothing": (say("error: a: b\n", 1), set()),
    "no message": (say("oh\n", 1), {"no message"}),
    "a traceback": (fail, {"traceback"}),
    "a panic": (say("thread 'main' panicked at x\nerror: a\n", 1), {"foreign output"}),
    "a warning of a library": (say("/x/y.py:3: UserWarning: z\n"), {"foreign output"}),
    "a signal": (end_by_signal, {"signal"}),
    "another exit code": (say("error: x\n", 9), {"exit code"}),
    "memory": (allocate, {"memory"}),
    "a loop": (lambda: sum(1 for _ in iter(int, 1)), {"time"}),
    "a pipe": (wait_for_a_pipe, {"time"}),
    "a link": (follow, {"did: open", "did: outside"}),
    "another language": (read_without_python, {"did: outside"}),
    "a secret": (say(f"error: {CANARY}\n", 1), {"secret quoted"}),
    "a file beside": (write_beside, {"did: open for writing"}),
    "a connection": (connect, {"did: socket.connect"}),
    "a process": (lambda: subprocess.call(["true"]), {"did: subprocess.Popen"}),
    "control characters": (say("error: \x1b[2J\n", 1), {"control characters"}),
    "a long message": (say("error: " + "x " * 15_000, 1), {"long output"}),
    "NaN": (say('{"outputs": [1.0, null]}\n', 0, 1), {"non-finite"}),
}


@pytest.mark.parametrize("name", BAD)
def test_the_watch_finds(name, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.hostile.watch.ASLEEP", 0.3)
    work, faults = BAD[name]
    for folder in ("tree", "out", "outside"):
        (tmp_path / folder).mkdir()
    mutations.write(Tree({}, "model"), tmp_path)
    start = time.perf_counter()
    outcome = watched(work, Place(tmp_path), limit=0.5)
    found = {
        fault
        for fault in faults_of(outcome, "embed", seconds=0.5, memory=MEMORY)
        if fault != "exit code" or "exit" in name
    }
    assert found == faults, outcome
    assert time.perf_counter() - start < 20


def test_a_mutation_is_a_function_of_its_seed():
    files = {"model/config.json": b'{"a": [1, {"b": "c"}], "d": 2.5}', "model/x.txt": b"one\ntwo\n"}
    seen = set[str]()
    same = 0
    for seed in range(60):
        trees = [Tree(dict(files), "model") for _ in range(2)]
        whats = {mutations.apply(Random(seed), tree) for tree in trees}
        assert len(whats) == 1 and trees[0].files == trees[1].files
        same += trees[0].files == files
        seen |= whats
    assert len(seen) > 40 and same < 10  # a value may become an equal one


def test_json_is_mutated_in_one_place():
    document = {"a": {"b": [1, 2, 3]}, "c": "d"}
    for seed in range(100):
        text, what = json_values.mutate(Random(seed), document)
        assert what and "@@raw" not in text.decode("utf-8", "replace")
    assert document == {"a": {"b": [1, 2, 3]}, "c": "d"}
