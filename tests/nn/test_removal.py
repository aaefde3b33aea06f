"""A package without a variant works: its file and its lines in the table are all that there is."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.nn.removal import copy_of_package, table_without

from trifold.nn.variants import VARIANTS

ROOT = Path(__file__).parents[2]
QUIET = ("-q", "-n", "0", "-p", "no:cacheprovider")
NAMES = [module.__name__.rpartition(".")[2] for module in VARIANTS]

# Imports every module of the package without some variants, and prints a digest of what classical
# models compute. Collections would visit what torch has imported, and so copy it into each process.
PROGRAM = """
import gc, hashlib, importlib, json, os, pkgutil, sys
gc.disable()
import numpy, pydantic, torch
from tests.nn.removal import hide

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
        hide(NAMES)
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
    copy = copy_of_package(folder)
    for table in (copy / "nn" / "__init__.py", copy / "nn" / "variants" / "__init__.py"):
        table.write_text(table_without(names, table.read_text("utf-8")), "utf-8")
    for name in names:
        (copy / "nn" / "variants" / f"{name}.py").unlink()
    return folder


def digests(removed: Sequence[Sequence[str]]) -> list[str]:
    """What packages without these variants compute, or the error of one that fails."""
    command = [sys.executable, "-c", PROGRAM, *map(json.dumps, removed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def groups(names: Sequence[str]) -> list[list[str]]:
    """Few groups of which, for each two names, one has the first name without the second: no name is
    in all groups of another, because each is in as many, and in other ones.
    """
    count = next(n for n in itertools.count(1) if math.comb(n, n // 2) >= len(names))
    chosen = [*zip(names, itertools.combinations(range(count), count // 2), strict=False)]
    return [[name for name, numbers in chosen if number in numbers] for number in range(count)]


def test_groups_separate_each_two_variants() -> None:
    for one, other in itertools.permutations(NAMES, 2):
        assert any(one in group and other not in group for group in groups(NAMES))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_package_without_variants_computes_the_same_classical_models() -> None:
    """Without all, and without groups: of each two variants, one is removed while the other is
    there, so that a variant that needs another one fails. A copy for each takes twice as long.
    """
    removed = [[], *groups(NAMES), NAMES]
    complete, *others = digests(removed)
    pairs = zip(removed[1:], others, strict=True)
    wrong = {" ".join(names): got for names, got in pairs if got != complete}
    assert re.fullmatch("[0-9a-f]{64}", complete), complete
    assert not wrong


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m`."""
    command = [sys.executable, "-m", *arguments]
    environment = os.environ | environment
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )


@pytest.mark.slow
def test_a_package_without_variants_trains(tmp_path: Path) -> None:
    package = {"PYTHONPATH": str(package_without(NAMES, tmp_path))}
    words = ("train", "smoke", "train.steps=4", "train.warmup=1", "--out", str(tmp_path / "run"))
    done = run(package, "trifold", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_the_laws_of_classical_models_hold_without_variants() -> None:
    """An order of tokens is a variant. Compiled blocks take long, and do not depend on variants."""
    plugin = ("-p", "tests.nn.removal")
    laws = ("pytest", "tests/laws", "--ignore", "tests/laws/test_compile.py", *QUIET, *plugin)
    chosen = "(2017 or BERT or GPT) and not higher_rank"
    done = run({"TRIFOLD_WITHOUT": " ".join(NAMES)}, *laws, "-k", chosen)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 80, done.stdout[-300:]
