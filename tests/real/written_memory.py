"""The memory that a loaded model takes, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LINUX_ONLY = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory of Linux processes"
)
# The arguments are two files and the kind of weights. The first model imports and compiles.
SCRIPT = """
import sys
import threading
import torch
from trifold import load

def written_memory():
    for each in threading.enumerate():
        if each.name == "pages":  # it may still release the memory of the file
            each.join()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

def run(file):
    model = load(file, weights=sys.argv[3], dtype="bfloat16")
    model.generate_tokens(torch.tensor([[2, 818, 5279]]), max_new_tokens=8)
    return model

first = run(sys.argv[1])
before = written_memory()
second = run(sys.argv[2])
print(1024 * (written_memory() - before))
"""


def written_memory(first: Path, second: Path, weights: str) -> int:
    """The bytes that the second model takes once it has written tokens."""
    with second.open("rb") as file:
        os.fsync(file)  # what is not on disk yet counts as written
    command = [sys.executable, "-c", SCRIPT, str(first), str(second), weights]
    for _ in range(2):  # the first may compile code, which takes memory
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout)
