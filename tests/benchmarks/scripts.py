"""Load and run the scripts of benchmarks, which are folders and no packages."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

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
    """The lines that a script prints, in this process: a new one would import everything again."""
    folder, _, name = script.rpartition("/")
    module, printed = load(folder, name.removesuffix(".py")), io.StringIO()
    with (
        mock.patch.object(sys, "argv", [script, *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(printed),
    ):
        assert not module.main()
    return printed.getvalue().splitlines()
