"""Counts the calls of each fast kernel by the laws; a kernel that no law executed fails the run.

A pytest plugin (tests/conftest.py registers it, because a plugin runs where xdist sums the counts of
its workers). The run fails only if all laws ran: no file or case of tests/laws was left out. The
counts are printed with -v, with TRIFOLD_KERNELS=1, and if one is 0.

Kernels are found, not listed:

    every torch.autograd.Function of trifold.fast, forward and backward
    every function x with a partner supports_x or _supports_x…, and those in MORE
    CompiledDecoder.run, by the type of its weights, and TokenStep.run, by that of the model
    every compiled loop of fast/loops.py
    every opcode, activation, norm and mode of the interpreter (fast/instruction.py)
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

FOLDER = Path(__file__).parent
COUNTS: Counter[str] = Counter()  # of this process
TYPES = ("float32", "bfloat16")  # in which a kernel must run, unless PRECISIONS says otherwise
# What a matmul of the interpreter reads, by its number.
WEIGHTS = (*TYPES, "widened bfloat16", "float16")
PRECISIONS: dict[str, tuple[str, ...]] = {
    "int8_linear": ("int8",),  # bf16 states
    "bias_linear": ("bfloat16",),
    "widened_linear": ("bfloat16",),
    "block_linear": TYPES,
    "block_linears": ("bfloat16",),
    "trained_linear": ("bfloat16",),
    "_TrainedLinear.forward": ("bfloat16",),
    "_TrainedLinear.backward": ("bfloat16",),
    "parameter_gradients": ("bfloat16",),
    "short_attention": ("bfloat16",),
    "_ShortAttention.forward": ("bfloat16",),
    "_ShortAttention.backward": ("bfloat16",),
    "gelu": ("bfloat16",),
    "int8_feed_forward": ("bfloat16",),
    "layer_norm": ("bfloat16",),  # of a training loop
    "quantize_rows": ("bfloat16",),
    "dequantize_rows": ("bfloat16",),
    "requantize_gelu": ("float32",),  # no array of bf16
    "CompiledDecoder.run": tuple(
        f"{each}{rows}" for each in (*WEIGHTS, "blocks") for rows in ("", " of many rows")
    ),
    "_LinearCrossEntropy.backward": ("float32",),  # the gradient of a loss
    "onednn_linear": ("float32",),
    "_OnednnLinear.forward": ("float32",),
    "_OnednnLinear.backward": ("float32",),
    "NORM": ("float32",),
    "QUANTIZE": ("bfloat16",),
    "DEQUANTIZE": ("bfloat16",),  # float32: of a head
    "CONVERT": ("bfloat16",),
}
# The classes that execute a decoding step.
STEPS = {"compiled_decoder": "CompiledDecoder", "token_step": "TokenStep"}
# Kernels without a partner.
MORE = ("sparse_attend", "packed_attention", "fused_attention", "concatenated_linears")
# Modules whose kernels some processors cannot run -> the precision of the products they need.
WITH_INSTRUCTIONS = {
    "bfloat16_linear": "bfloat16",
    "encoder_layers": "float32",
    "short_attention": "bfloat16",
}
# Kernels that some processors run in one precision only, and those that some do not run.
ON_LANES = ("attention.prompt_attention",)
ON_PANELS = ("decoding_step.compiled_prompt",)
# Conditions that several kernels share, and the one of a class.
NO_KERNELS = {"supports_loops", "supports_token_step"}


class Site(NamedTuple):
    """An attribute that a counting function replaces."""

    owner: Any
    attribute: str
    replacement: Any


# --- which kernels --------------------------------------------------------------------------------


@cache
def kernels() -> tuple[list[Site], list[str]]:
    """Where kernels are called, and the names of all kernels with their precisions."""
    sites, expected = list[Site](), list[str]()
    for name, found in _found():
        if not _can_run(name.split(".")[0]):
            continue
        sites += found
        expected += [f"{name} {each}" for each in PRECISIONS.get(name.split(".", 1)[-1], TYPES)]
    sites_of_steps, names = _instructions()
    return sites + sites_of_steps, [name for name in expected + names if _has_instructions(name)]


def _has_instructions(name: str) -> bool:
    """Whether this processor can run a kernel in its precision."""
    from trifold.fast.instruction_sets import has_panels, products_of_keys

    kernel, _, precision = name.partition(" ")
    has_products = products_of_keys(precision) is not None
    if kernel in ON_PANELS:
        return has_panels() or (precision == "bfloat16" and has_products)
    return kernel not in ON_LANES or has_products


def _can_run(module: str) -> bool:
    """Whether this processor can run the kernels of a module."""
    from trifold.fast import compiled_block, has_instructions

    if module not in WITH_INSTRUCTIONS:
        return True
    return compiled_block() is not None and has_instructions(WITH_INSTRUCTIONS[module])


def _modules() -> list[ModuleType]:
    package = import_module("trifold.fast")
    names = [f"trifold.fast.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return [package, *map(import_module, names)]


def _found() -> Iterator[tuple[str, list[Site]]]:
    """The name of each kernel, and where it is called."""
    import torch

    for module in _modules():
        short = module.__name__.rpartition(".")[2]
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                for method in ("forward", "backward"):
                    kernel = f"{short}.{name}.{method}"
                    counted = staticmethod(_counted(kernel, getattr(value, method)))
                    yield kernel, [Site(value, method, counted)]
            elif isinstance(value, FunctionType) and (function := _partner(module, name)):
                kernel = f"{short}.{function.__name__}"
                yield kernel, _everywhere(function, _counted(kernel, function))
        if short == "loops":
            for name, value in list(vars(module).items()):
                if type(getattr(value, "_cache", None)).__name__ == "FunctionCache":
                    yield f"loops.{name}", [Site(module, name, _counted(f"loops.{name}", value))]
        if short in STEPS:
            owner = getattr(module, STEPS[short])
            kernel = f"{short}.{STEPS[short]}.run"
            yield kernel, [Site(owner, "run", _counted(kernel, owner.run))]


def _partner(module: ModuleType, name: str) -> FunctionType | None:
    """The kernel whose condition is the function of that name, or that is named in MORE."""
    if name in MORE:
        return getattr(module, name)  # type: ignore[no-any-return]
    condition = re.fullmatch("_?supports_(.+)", name)
    if condition is None or name in NO_KERNELS:
        return None
    beginning = condition[1]
    found = [
        value
        for other, value in vars(module).items()
        if isinstance(value, FunctionType) and re.fullmatch(f"_?{beginning}.*", other)
    ]
    assert found, f"{module.__name__}.{name} has no function {beginning}…; see kernels.py"
    return found[0]


def _everywhere(function: Any, replacement: Any) -> list[Site]:
    """All names of a function in the modules of trifold."""
    return [
        Site(module, name, replacement)
        for title, module in list(sys.modules.items())
        if title.startswith("trifold")
        for name, value in list(vars(module).items())
        if value is function
    ]


def _instructions() -> tuple[list[Site], list[str]]:
    """Where instructions are executed, and the names of their kinds."""
    from trifold.fast import compiled_interpreter, instruction, thread_pool

    if compiled_interpreter() is None:
        return [], []
    groups = _groups(Path(instruction.__file__))
    types = groups["FLOAT32"]
    execute = thread_pool.execute

    @wraps(execute)
    def counted(program: Any) -> None:
        for number, name in enumerate(groups["NORM"]):
            own = program[program["opcode"] == number]
            COUNTS.update(f"opcode.{name} {types[each].lower()}" for each in own["dtype"])
            if name == "NORM":
                COUNTS.update(f"norm.{groups['LAYER_NORM'][each]}" for each in own["norm"])
            if name in ("MATMUL", "DEQUANTIZE", "FINISH"):
                COUNTS.update(f"activation.{groups['NONE'][each]}" for each in own["activation"])
                COUNTS.update(f"mode.{groups['SET'][each]}" for each in own["mode"])
        execute(program)

    names = [f"opcode.{o} {t}" for o in groups["NORM"] for t in PRECISIONS.get(o, TYPES)]
    for prefix, first in (("norm", "LAYER_NORM"), ("activation", "NONE"), ("mode", "SET")):
        names += [f"{prefix}.{name}" for name in groups[first]]
    return _everywhere(execute, counted), names


def _groups(path: Path) -> dict[str, list[str]]:
    """The names that one statement gives the values 0, 1, …, by the first of them."""
    found = {}
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            names = [name.id for name in statement.targets[0].elts if isinstance(name, ast.Name)]
            found[names[0]] = names
    return found


# --- counting -------------------------------------------------------------------------------------


def _counted(kernel: str, function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @wraps(function, updated=())
    def counted(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            COUNTS[f"{kernel} {_precision(kernel, args)}"] += 1
        return function(*args, **kwargs)

    return counted


def _precision(kernel: str, args: tuple[Any, ...]) -> str:
    """The precision of a call: int8 if a weight is, else the type of the first floating tensor."""
    import numpy as np
    from torch import Tensor

    from trifold.fast.instruction import FEW_ROWS

    if kernel.endswith("CompiledDecoder.run"):
        rows = " of many rows" if args[0].max_rows > FEW_ROWS else ""
        return _weights_of(args[0]) + rows
    if kernel.endswith("TokenStep.run"):
        return str(args[0].dtype).removeprefix("torch.")
    flat = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else (arg,))]
    if any(type(each).__name__ == "Int8Weight" for each in flat):
        return "int8"
    if arrays := [each for each in flat if isinstance(each, np.ndarray)]:
        return "bfloat16" if any(each.dtype == np.uint16 for each in arrays) else "float32"
    tensors = [each for each in flat if isinstance(each, Tensor) and each.is_floating_point()]
    return str(tensors[0].dtype).removeprefix("torch.") if tensors else "none"


def _weights_of(decoder: Any) -> str:
    """What the matrices of a compiled decoder are: blocks, or their type."""
    from trifold.fast.instruction import BLOCK_MATMUL, MATMUL

    program = decoder.program
    if (program["opcode"] == BLOCK_MATMUL).any():
        return "blocks"
    if decoder.matmuls:
        return str(decoder.matmuls[0][0].weight.dtype).removeprefix("torch.")
    return WEIGHTS[max(program["dtype"][program["opcode"] == MATMUL])]


def count_kernels(patch: pytest.MonkeyPatch) -> None:
    """Count the calls of kernels until the patch ends."""
    for site in kernels()[0]:
        patch.setattr(*site)


# --- the run --------------------------------------------------------------------------------------


class Run:
    """What is known about the laws of a run, on xdist from all workers."""

    def __init__(self) -> None:
        self.complete = True
        self.collected = 0
        self.ran = set[str]()
        self.counts = dict[str, int]()
        self.missing = list[str]()

    def add(self, counts: dict[str, int], collected: int, complete: bool) -> None:
        """The counts of a worker."""
        self.complete, self.collected = self.complete and complete, collected
        self.counts = dict(Counter(self.counts) + Counter(counts)) | {
            name: 0 for name, count in counts.items() if not count + self.counts.get(name, 0)
        }


RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUN] = Run()
    if any("::" in arg and "laws" in arg for arg in config.args):
        config.stash[RUN].complete = False


def _is_law(item: pytest.Item) -> bool:
    return _has_laws(item.path)


@cache
def _has_laws(file: Path) -> bool:
    return FOLDER in file.parents


def pytest_deselected(items: list[pytest.Item]) -> None:
    laws = [item for item in items if _is_law(item)]
    if laws:
        laws[0].config.stash[RUN].complete = False


def pytest_collection_finish(session: pytest.Session) -> None:
    run, laws = session.config.stash[RUN], [item for item in session.items if _is_law(item)]
    run.collected = len(laws)
    has_all = {item.path for item in laws} == set(FOLDER.glob("test_*.py"))
    options = session.config.option
    # With a part from outside, the table has other configs; with a mark, cases are left out.
    if not has_all or session.testsfailed or options.part or options.markexpr:
        run.complete = False


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "skipped":
        _RAN.add(report.nodeid)


_RAN = set[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", {}).get("laws")
    if output is None:
        node.config.stash[RUN].complete = False
    else:
        node.config.stash[RUN].add(*output)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    run = config.stash[RUN]
    if not hasattr(config, "dsession") and not config.pluginmanager.hasplugin("dsession"):
        names = kernels()[1] if run.collected and run.complete else []
        counts = dict.fromkeys(names, 0) | dict(COUNTS)
        if hasattr(config, "workeroutput"):
            config.workeroutput["laws"] = (counts, run.collected, run.complete)
            return
        run.add(counts, run.collected, run.complete)
    law = f"{FOLDER.parent.name}/{FOLDER.name}/"
    ran = sum(nodeid.startswith(law) for nodeid in _RAN)
    if run.complete and run.collected and ran == run.collected and _has_numba():
        run.missing = sorted(name for name, count in run.counts.items() if not count)
        if run.missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _has_numba() -> bool:
    from trifold.fast import compiled_loops

    return compiled_loops() is not None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = config.stash[RUN]
    wants = config.get_verbosity() > 0 or os.environ.get("TRIFOLD_KERNELS")
    if run.missing or (wants and run.collected):
        terminalreporter.section("calls of fast kernels by the laws")
        for name, count in sorted(run.counts.items()):
            terminalreporter.write_line(f"{count:8,}  {name}")
    if run.missing:
        terminalreporter.write_line(
            f"error: no law executed {', '.join(run.missing)}: add a config or a case to tests/laws "
            "that does",
            red=True,
        )
