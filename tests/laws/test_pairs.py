"""The table of configs has every allowed pair of parts; others are rejected by name."""

from __future__ import annotations

import ast
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tests.laws.configs import BREAKS, CONFIGS, parts_of, variants_of
from tests.laws.kernels import Run
from tests.laws.operations import KEPT, LOW
from tests.laws.pairs import Pairs, find_pairs, names_part, pairs_of, propose
from tests.laws.parts import OUTSIDE, PARTS, VARIANTS

from trifold import fast

pytestmark = pytest.mark.skipif(bool(OUTSIDE), reason="the table is of the parts of the package")
pairs = cache(find_pairs)


@pytest.fixture(autouse=True)
def operations() -> None:
    """Nothing here computes."""


def test_every_allowed_pair_of_parts_is_in_a_config() -> None:
    covered = {pair for name in CONFIGS for pair in pairs_of(parts_of(name))}
    missing = set(pairs().allowed) - covered
    assert not missing, f"add to configs.py: {propose(missing)}"


def test_every_variant_is_in_a_config() -> None:
    assert {variant for name in CONFIGS for variant in variants_of(name)} == set(VARIANTS)


def test_a_pair_is_rejected_with_a_message_that_names_both_parts() -> None:
    found: Pairs = pairs()
    assert len(found.allowed) > 800 and len(found.rejected) > 200
    unnamed = {
        pair: message
        for pair, message in found.rejected.items()
        if not all(names_part(message, name) for name in pair)
    }
    assert not unnamed


def test_breaks_name_parts_and_laws() -> None:
    laws = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for law, part in BREAKS:
        assert part in PARTS or part in VARIANTS, part
        assert law in laws or f'"{law}"' in sources, law


FORMATS = ("instruction", "object_code")  # whose numbers are no thresholds


def test_every_threshold_of_a_kernel_is_lowered_or_kept_for_a_reason() -> None:
    found = set[str]()
    for info in pkgutil.iter_modules(fast.__path__):
        module = import_module(f"trifold.fast.{info.name}")
        for statement in ast.parse(Path(str(module.__file__)).read_text()).body:
            for name in ast.walk(statement) if isinstance(statement, ast.Assign) else ():
                is_number = isinstance(name, ast.Name) and isinstance(
                    getattr(module, name.id, None), int | float
                )
                if is_number and isinstance(name.ctx, ast.Store) and info.name not in FORMATS:
                    found.add(f"{info.name}.{name.id}")
    known = {name.removeprefix("trifold.fast.") for name in LOW} | KEPT.keys()
    assert {name for name in found if name.rpartition(".")[2].isupper()} <= known


def test_counts_of_workers_are_summed() -> None:
    run = Run()
    run.add({"one": 0, "two": 3, "three": 0}, 5, True)
    run.add({"one": 2, "two": 1, "three": 0}, 5, True)
    assert run.counts == {"one": 2, "two": 4, "three": 0} and run.complete
    run.add({"one": 2}, 5, False)
    assert not run.complete
