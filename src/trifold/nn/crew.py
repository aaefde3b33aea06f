"""Who works off the lines of step_loops.py: this thread, and helpers that wait for work."""

from __future__ import annotations

import importlib
import os
import threading
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.nn.int8 import Int8, Matrix

Array: TypeAlias = NDArray[Any]

MOST = 16  # threads: memory gives no more
FEW = 4  # rows up to which a product by the loops is quicker than by a library
WORTH = 2**20  # weights from which on it is worth to begin with them


@cache
def step_loops() -> Any:
    """The module of compiled loops, or None where numba is not installed."""
    try:
        return importlib.import_module("trifold.nn.step_loops")
    except ImportError:
        return None


class Crew:
    """Helpers wait in Python, not in a loop: between two programs the processors are everybody's."""

    def __init__(self) -> None:
        self._helpers: list[SimpleQueue[tuple[Array, ...]]] = []
        if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
            os.register_at_fork(after_in_child=self._helpers.clear)

    def run(self, program: Array) -> None:
        """Work off the lines on as many threads as torch has; helpers that are busy elsewhere come when they can."""
        loops = step_loops()
        threads = min(torch.get_num_threads(), MOST)
        # Copied: a helper that comes too late still looks into it.
        job = program.copy(), np.zeros(len(program), np.int64), np.zeros(len(program), np.int64)
        while len(self._helpers) < threads - 1:
            self._engage(loops.follow)
        for helper in self._helpers[: threads - 1]:
            helper.put(job)
        loops.follow(*job)

    def _engage(self, follow: Any) -> None:
        jobs: SimpleQueue[tuple[Array, ...]] = SimpleQueue()

        def work() -> None:
            while True:
                follow(*jobs.get())

        threading.Thread(target=work, name="trifold-helper", daemon=True).start()
        self._helpers.append(jobs)


CREW = Crew()


# --- lines ---------------------------------------------------------------------------------------------


def matrix_fields(weight: Matrix) -> dict[str, int]:
    """How a line names a matrix (N, K), which has to stay alive; it is contiguous."""
    loops = step_loops()
    if isinstance(weight, Int8):
        kind, values, scales = loops.BYTE, weight.values, weight.scales.data_ptr()
    else:
        kind, values, scales = KINDS[weight.dtype](loops), weight, 0
    outputs, inputs = weight.shape
    return {
        **{"op": loops.PRODUCT, "kind": kind, "weight": values.data_ptr(), "scales": scales},
        **{"inputs": inputs, "outputs": outputs},
        "tasks": -(-outputs // loops.outputs_of_a_task.py_func(inputs, kind)),
    }


def run_line(**fields: Tensor | float | None) -> None:
    """Work off one line; of a tensor it takes the address."""
    program = np.zeros(1, step_loops().LINE)
    for name, value in fields.items():
        if value is not None:
            program[name] = value.data_ptr() if isinstance(value, Tensor) else value
    CREW.run(program)


# Types of numbers that the loops read -> their name there.
KINDS = {torch.float32: lambda loops: loops.FLOAT, torch.bfloat16: lambda loops: loops.BRAIN}


def suits(weight: Matrix) -> bool:
    """Whether the loops can read this matrix as it lies."""
    if isinstance(weight, Int8):
        return weight.values.device.type == "cpu"
    return weight.device.type == "cpu" and weight.dtype in KINDS and weight.is_contiguous()


def thin(x: Tensor, weight: Matrix) -> bool:
    """Whether a product of x with this weight is one for the loops: few rows, a large matrix, no gradients."""
    return (
        x.shape[-1] * FEW >= x.numel()
        and weight.shape[0] * weight.shape[1] >= WORTH
        and not torch.is_grad_enabled()
        and suits(weight)
        and x.numel() > 0
        and step_loops() is not None
    )


def thin_product(x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
    """x (…, K) · weightᵀ + bias -> (…, N) in float32; its twin is F.linear."""
    wide = x.detach().float().contiguous()
    out = torch.empty(*x.shape[:-1], weight.shape[0])
    added = None if bias is None else bias.detach().float().contiguous()
    fields = matrix_fields(weight) | {"rows": x.numel() // x.shape[-1]}
    run_line(**fields, x=wide, out=out, bias=added)
    return out
