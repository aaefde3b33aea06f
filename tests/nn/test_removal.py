"""A package without a variant works: its file and its lines in the table are all that there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import trifold
from trifold.nn.variants import VARIANTS

PACKAGE = Path(trifold.__file__).parent
NAMES = [module.__name__.rpartition(".")[2] for module in VARIANTS]

# Imports every module of the package without some variants, and prints a digest of what classical
# models compute.
PROGRAM = """
import hashlib, importlib, json, os, pkgutil, sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_loader
import numpy, pydantic, torch
from tests.nn.test_removal import table_without

class Removed(MetaPathFinder):
    "Hides the files of variants, and their lines in the tables."

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path, target=None):
        if name in {f"trifold.nn.variants.{hidden}" for hidden in self.names}:
            raise ModuleNotFoundError(f"no module {name}")
        if name not in ("trifold.nn", "trifold.nn.variants"):
            return None
        file = os.path.join(path[0], name.rpartition(".")[2], "__init__.py")
        return spec_from_loader(name, Table(name, file, self.names), is_package=True)

class Table(SourceFileLoader):
    def __init__(self, name, file, names):
        super().__init__(name, file)
        self.names = names

    def get_code(self, name):
        with open(self.path, encoding="utf-8") as file:
            return compile(table_without(self.names, file.read()), self.path, "exec")

def digest():
    import trifold
    from trifold import fast
    from trifold.nn import Inputs, ModelConfig, Transformer

    fast.enable()
    for module in pkgutil.walk_packages(trifold.__path__, "trifold."):
        hidden = module.name.rpartition(".")[2] in NAMES and ".variants." in module.name
        if not (hidden or module.name.endswith("__main__")):
            importlib.import_module(module.name)
    sizes = {"vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 24, "dropout": 0.1}
    found = hashlib.sha256()
    for shape in ("encoder-decoder", "encoder", "decoder"):
        for more in ({}, {"positions": "learned", "norm_placement": "pre", "activation": "gelu"}):
            torch.manual_seed(5)
            model = Transformer(ModelConfig(shape=shape, **sizes, **more))
            tokens = torch.randint(31, (2, 9))
            inputs = Inputs(tokens, torch.arange(9) < torch.tensor([[9], [5]]))
            model(inputs).square().sum().backward()
            outputs = [p.grad for p in model.parameters() if p.grad is not None]
            model.eval()
            if shape != "encoder":
                with torch.no_grad():
                    memory = None if shape == "decoder" else model.encode(inputs)
                    cache = model.new_cache()
                    parts = tokens.split([4, 1, 4], 1)
                    outputs += [model.decode(Inputs(part), memory, cache) for part in parts]
            for x in outputs:
                found.update(x.detach().numpy().tobytes())
    return found.hexdigest()

torch.set_num_threads(1)
NAMES = ()
digest()  # imports what the package needs, once for all
for module in [name for name in sys.modules if name.startswith("trifold")]:
    del sys.modules[module]
for argument in sys.argv[1:]:
    NAMES = json.loads(argument)
    read, write = os.pipe()
    if os.fork() == 0:  # each in a process of its own, which has imported torch
        sys.meta_path.insert(0, Removed(NAMES))
        try:
            result = digest()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    os.wait()
    print(json.dumps(os.read(read, 10_000).decode()), flush=True)
"""


def package_without(names: Sequence[str], folder: Path) -> Path:
    """A copy of the package without these variants and their lines."""
    copy = folder / "trifold"
    ignored = shutil.ignore_patterns("__pycache__", "*.html")
    shutil.copytree(PACKAGE, copy, ignore=ignored, symlinks=True)
    for table in (copy / "nn" / "__init__.py", copy / "nn" / "variants" / "__init__.py"):
        table.write_text(table_without(names, table.read_text("utf-8")), "utf-8")
    for name in names:
        (copy / "nn" / "variants" / f"{name}.py").unlink()
    return folder


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


def digests(removed: Sequence[Sequence[str]]) -> list[str]:
    """What packages without these variants compute, or the error of one that fails."""
    command = [sys.executable, "-c", PROGRAM, *map(json.dumps, removed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_package_without_a_variant_computes_the_same_classical_models() -> None:
    removed = [[], *([name] for name in NAMES), NAMES]
    complete, *others = digests(removed)
    pairs = zip(removed[1:], others, strict=True)
    wrong = {" ".join(names): got for names, got in pairs if got != complete}
    assert re.fullmatch("[0-9a-f]{64}", complete), complete
    assert not wrong


@pytest.mark.slow
def test_a_package_without_variants_trains(tmp_path: Path) -> None:
    folder = package_without(NAMES, tmp_path)
    command = [sys.executable, "-m", "trifold", "train", "smoke", "--out", str(tmp_path / "run")]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
