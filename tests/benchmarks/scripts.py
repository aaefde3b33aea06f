"""Load and run the scripts of benchmarks, which are folders and no packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def load(folder: str, name: str) -> ModuleType:
    """A module of a benchmark. It and the neighbors that it imports are removed from sys.modules."""
    path, before = BENCHMARKS / folder, set(sys.modules)
    sys.path.insert(0, str(path))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(path))
        for new in set(sys.modules) - before:
            if Path(getattr(sys.modules[new], "__file__", None) or "/").parent == path:
                del sys.modules[new]


def run(script: str, *arguments: object, **environment: str) -> list[str]:
    """The lines that a script prints."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.splitlines()
