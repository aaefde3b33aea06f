"""Options of pytest, the environment of all tests, and which tests are quick."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key

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

Case = TypeVar("Case")

pytest_plugins = ["tests.laws.kernels"]  # counts the calls of fast kernels
QUICK_CASES = 3  # of one test in `make check`, unless its mark `quick_cases` says another number


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/laws --part my_package.my_part`: the laws for a part from outside."""
    text = "a part from outside, with which all laws run, alone and beside every other part"
    parser.addoption("--part", action="append", default=[], metavar="NAME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tables of the laws are imported."""
    os.environ["TRIFOLD_PARTS"] = " ".join(config.getoption("--part"))
    if hasattr(config, "workerinput") and not sys.dont_write_bytecode:
        _compile_share(config, **config.workerinput)
    if not _only_distributes(config):
        config.pluginmanager.import_plugin("tests.fixtures")
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor" and config.getoption("durations") is None:
            plugin.sendevent = partial(_send_results, plugin.sendevent)


def _compile_share(config: pytest.Config, workerid: str, workercount: int, **_: Any) -> None:
    """In a fresh checkout, compile the test files that are this worker's, and find those of others
    on disk, instead of all: each worker collects all tests.
    """
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[int(workerid.removeprefix("gw")) :: workercount]:
        compiled = file.parent / "__pycache__" / (file.stem + PYC_TAIL)
        if not compiled.exists():
            compiled.parent.mkdir(exist_ok=True)
            status, code = _rewrite_test(file, config)
            _write_pyc(config.stash[assertstate_key], code, status, compiled)


def _only_distributes(config: pytest.Config) -> bool:
    """Whether this process runs no test: it starts workers, and need not wait for torch before."""
    return config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")


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
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, what it has left are modules and results for later tests."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make only the cases of a test that `make check` runs, if it runs no others: to make all and to
    leave them out later takes seconds in each worker.
    """
    if metafunc.config.option.markexpr == "not slow":
        not_slow = [call for call in metafunc._calls if not _is_slow(call, metafunc.fixturenames)]
        if len(not_slow) > 1:
            mark = metafunc.definition.get_closest_marker("quick_cases")
            metafunc._calls = _sample(not_slow, mark)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test as slow, except for a sample: the quick tests run at most three,
    evenly spread, or as many as the mark `quick_cases` says. In a checkout that has compiled nothing
    yet, also the tests of compiled code.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        call = getattr(item, "callspec", None)
        if _is_slow(call, item.fixturenames):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        quick = set(_sample(each, each[0].get_closest_marker("quick_cases")))
        for item in each:
            if item not in quick:
                item.add_marker(pytest.mark.slow)


def _sample(cases: list[Case], mark: pytest.Mark | None) -> list[Case]:
    """The cases of a test that are quick: some, evenly spread."""
    count = mark.args[0] if mark else QUICK_CASES
    step = max(1, len(cases) / count)
    return [cases[int(number * step)] for number in range(min(len(cases), count))]


def _is_slow(call: Any, fixtures: Sequence[str]) -> bool:
    """Whether a case is marked as slow, or needs compiled code that is not there: those of fast/, and
    the laws with the fast operations. call: the `callspec` of a case with parameters, or None.
    """
    if call is not None and any(mark.name == "slow" for mark in call.marks):
        return True
    is_fast = call is not None and call.params.get("operations") == "fast"
    return (is_fast or "interpreter" in fixtures) and not _has_compiled()


@cache
def _has_compiled() -> bool:
    """Whether machine code of any version of the interpreter is on disk, or none can be compiled.

    The first `make check` of a checkout does not wait half a minute for it. `make test` compiles it,
    and later quick tests execute it, also where its source has changed.
    """
    from trifold import fast

    compiled = fast.compiled_interpreter()
    return compiled is None or any(
        path for folder in compiled._folders() for path in folder.glob("interpreter-*.o")
    )
