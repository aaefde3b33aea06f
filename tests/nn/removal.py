"""Packages without some variants: their files and their lines in the tables are hidden.

As a pytest plugin (`pytest -p tests.nn.removal`) it hides the variants that TRIFOLD_WITHOUT names,
for a whole run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

VARIANTS = "trifold.nn.variants"


def copy_of_package(folder: Path) -> Path:
    """Copy the package into a folder, with its compiled modules and loops, which take ten seconds to
    compile; without what another process is writing beside them.
    """
    import trifold  # not before variants are hidden

    unfinished = shutil.ignore_patterns("*.pyc.*", "*tmp*")
    source = Path(trifold.__file__).parent
    return shutil.copytree(source, folder / "trifold", ignore=unfinished, symlinks=True)


class Removed(MetaPathFinder):
    """Hides the files of variants, and their lines in the tables."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in {f"{VARIANTS}.{hidden}" for hidden in self.names}:
            raise ModuleNotFoundError(f"no module {name}")
        if name not in ("trifold.nn", VARIANTS):
            return None
        assert path is not None
        file = Path(path[0]) / name.rpartition(".")[2] / "__init__.py"
        return spec_from_loader(name, Table(name, str(file), self.names), is_package=True)


class Table(SourceFileLoader):
    """Loads a table of parts without the lines of some variants."""

    def __init__(self, name: str, file: str, names: Sequence[str]) -> None:
        super().__init__(name, file)
        self.names = names

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text(encoding="utf-8")
        return compile(table_without(self.names, text), self.path, "exec")


def table_without(names: Sequence[str], text: str) -> str:
    """A table of parts without the lines of these variants."""
    for name in names:
        for group in re.findall(rf"^from trifold\.nn\.variants\.{name} import (\w+)$", text, re.M):
            text = re.sub(
                rf"    \w+: {group}(?: \| None)? = Field\((?:.|\n)*?\)\n(?=    \w|\n)", "", text
            )
            text = re.sub(rf'^    "{group}",\n', "", text, flags=re.M)
        text = re.sub(rf"^from trifold\.nn\.variants\.{name} import .*\n", "", text, flags=re.M)
        text = re.sub(rf"^    {name},\n", "", text, flags=re.M)
    return text.replace("from trifold.nn.variants import (\n)\n", "")


def hide(names: Sequence[str]) -> None:
    """Hide these variants from imports that follow."""
    sys.meta_path.insert(0, Removed(names))


if "TRIFOLD_WITHOUT" in os.environ:
    hide(os.environ["TRIFOLD_WITHOUT"].split())
