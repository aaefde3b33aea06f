"""Fixtures of all tests: one thread, fixed random numbers, no network, the folder of real data."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache, partial
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# What is imported and collected is no garbage: `pytest_collection_finish` enables it again.
gc.disable()

# Before torch or the hub is imported: workers share the cores, and tests use no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Inductor compiles in this process, and does not build a library for each set of vector instructions
# to see whether the compiler knows it: with an empty cache, the six builds take 15 seconds.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import torch
from filelock import FileLock
from tests.models import TWO_LAYERS, add_noise

from trifold import errors, fast, yaml_dialect
from trifold.nn import ModelConfig, Transformer

pytest_plugins = ["tests.laws.kernels"]  # counts the calls of fast kernels
QUICK_CASES = 3  # of one test in `make check`

torch.set_num_threads(1)
fast.enable()  # as `trifold.load` and `trifold.train` do; the tests of nn disable it

# The same examples every time, and no deadlines on a busy machine.
settings.register_profile(
    "trifold",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("trifold")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/laws --part my_package.my_part`: the laws for a part from outside."""
    text = "a part from outside, with which all laws run, alone and beside every other part"
    parser.addoption("--part", action="append", default=[], metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tables of the laws are imported."""
    os.environ["TRIFOLD_PARTS"] = " ".join(config.getoption("--part"))
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor" and config.getoption("durations") is None:
            plugin.sendevent = partial(_send_results, plugin.sendevent)


def _send_results(send: Callable[..., None], event: str, **content: Any) -> None:
    """Send an event of a worker, unless it is one of those that say nothing of a test that passes:
    its begin, its end, its setup and its teardown. Messages take longer than most tests.
    """
    report = content.get("data", {})
    if event in ("logstart", "logfinish"):
        return
    if event == "testreport" and report["outcome"] == "passed" and report["when"] != "call":
        return
    send(event, **content)


def pytest_collection_finish() -> None:
    """Let the garbage collector visit what tests make, and not all modules and thousands of
    collected tests again and again.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, what it has left are modules and results for later tests."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test as slow, except for a sample: the quick tests run at most three,
    evenly spread. In a checkout that has compiled nothing yet, also the tests of compiled code.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    has_compiled = _has_compiled()
    for item in items:
        if not has_compiled and _needs_compiled_code(item):
            item.add_marker(pytest.mark.slow)
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        step = max(1, len(each) / QUICK_CASES)
        quick = {each[int(number * step)] for number in range(min(len(each), QUICK_CASES))}
        for item in each:
            if item not in quick:
                item.add_marker(pytest.mark.slow)


def _has_compiled() -> bool:
    """Whether machine code of any version of the interpreter is on disk, or none can be compiled.

    The first `make check` of a checkout does not wait half a minute for it. `make test` compiles it,
    and later quick tests execute it, also where its source has changed.
    """
    compiled = fast.compiled_interpreter()
    return compiled is None or any(
        path for folder in compiled._folders() for path in folder.glob("interpreter-*.o")
    )


def _needs_compiled_code(item: pytest.Item) -> bool:
    """Whether a test executes compiled code: those of fast/, and the laws with the fast operations."""
    values = item.callspec.params if hasattr(item, "callspec") else {}
    return "interpreter" in item.fixturenames or values.get("operations") == "fast"  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="session")
def _messages_in_one_line() -> Iterator[None]:
    """Do not wrap messages, so that tests find their words. Tests of `errors.wrapped` give a width."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "COLUMNS", 100_000)
        yield


@pytest.fixture(autouse=True, scope="session")
def _cheap_seeds() -> Iterator[None]:
    """Without a GPU, seed the CPU only: `torch.manual_seed` formats a stack trace for each kind of
    device that is missing, which takes longer than many tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)
        yield


@pytest.fixture(autouse=True, scope="session")
def _cheap_commands() -> Iterator[None]:
    """Tests run thousands of commands in one process: keep what each would make again, which is the
    recipes that it reads, and for its options their signature and their types.
    """
    from typer import _adapters, main

    load = lru_cache(1_000)(yaml_dialect.load)
    parameters = lru_cache(1_000)(main.get_params_from_function)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_dialect, "load", lambda text: deepcopy(load(text)))
        patch.setattr(main, "get_params_from_function", lambda command: parameters(unwrap(command)))
        patch.setattr(_adapters, "TypeAdapter", lru_cache(1_000)(_adapters.TypeAdapter))
        yield


@pytest.fixture(autouse=True, scope="session")
def _cheap_training_runs() -> Iterator[None]:
    """Omit the wait for the disk, which costs more than a tiny training run, and most resamples of
    the scores in a card, which cost as much. Tests of these use their own replacement.
    """
    from tests.faults.runs import FEW_RESAMPLES

    from trifold.baselines import comparison
    from trifold.train import model_card  # slow to import

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(model_card, "RESAMPLES", FEW_RESAMPLES)
        patch.setattr(comparison, "RESAMPLES", FEW_RESAMPLES)
        yield


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile what executes decoding steps, unless Numba has it in its cache. This takes longer than
    most tests: one worker compiles, and the others wait.
    """
    with FileLock(tmp_path_factory.getbasetemp().parent / "interpreter.lock"):
        if interpreter := fast.compiled_interpreter():
            interpreter.entry_point()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(20170612)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of public corpora that `TRIFOLD_DATA` names; without it, the test is skipped."""
    value = os.environ.get("TRIFOLD_DATA")
    if not value:
        pytest.skip(
            "TRIFOLD_DATA is not set: it names the folder of public corpora (see CONTRIBUTING.md)"
        )
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"TRIFOLD_DATA={value}: no such folder")
    return folder


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode with the given values in its config."""

    sizes = TWO_LAYERS | {"vocab_size": 29, "max_positions": 40}
    return lambda **values: add_noise(Transformer(ModelConfig.parse(sizes | values)), 0.1)
