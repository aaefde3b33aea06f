"""Fixtures of all tests: one thread, fixed random numbers, the folder of real data.

A plugin that tests/conftest.py registers in each process that runs tests.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings
from tests.models import TWO_LAYERS, add_noise

from trifold import errors, fast, yaml_dialect
from trifold.nn import ModelConfig, Transformer

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
def _modules_stay_frozen() -> Iterator[None]:
    """Commands that compute in threads end with `gc.unfreeze`, after which a collection visits all
    modules and collected tests, which takes a second. The test of this calls the real function.
    """
    from trifold.cli import overlap

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "gc", SimpleNamespace(freeze=gc.freeze, unfreeze=lambda: None))
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


@pytest.fixture(autouse=True, scope="session")
def _one_worker_compiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """While a worker compiles a function that Numba keeps on disk, another that needs it waits, and
    then reads it. All of them together take a minute.
    """
    try:
        from numba.core.caching import FunctionCache
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.dispatcher import Dispatcher
    except ImportError:
        yield
        return
    folder, compiled = tmp_path_factory.getbasetemp().parent, Dispatcher.compile

    @lru_cache(None)
    def lock(function: str) -> FileLock:
        return FileLock(folder / f"{function}.lock", thread_local=False)

    def compile_alone(self: Any, signature: Any) -> Any:
        if not isinstance(self._cache, FunctionCache):
            return compiled(self, signature)
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        with global_compiler_lock, lock(re.sub(r"\W", "-", name)):
            return compiled(self, signature)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", compile_alone)
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
