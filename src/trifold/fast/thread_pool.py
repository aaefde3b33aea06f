"""Who works off the lines of step_loops.py: the threads that work for the library's own operators.

Threads of our own would have to share the processors with those, which keep one busy for milliseconds after every
operator, looking for more to do. Of OpenMP, which torch is linked with, they are to be had in two microseconds.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.fast.instruction import BRAIN, BYTE, FLOAT, LINE, PRODUCT, outputs_of_a_task
from trifold.fast.int8 import Int8, Matrix

Array: TypeAlias = NDArray[Any]
Begin: TypeAlias = Callable[[int, int, int, int], None]

MOST = 16  # threads: memory gives no more
FEW = 8  # rows up to which a product by the loops is quicker than by a library
SHARES = 32  # tasks that the units of a line are dealt out to, where there are so many
WORTH = 2**20  # weights from which on it is worth to begin with them
HOME = os.getpid()


@cache
def step_loops() -> Any:
    """The module of compiled loops, or None where numba is not installed."""
    try:
        return importlib.import_module("trifold.fast.step_loops")
    except ImportError:
        return None


@cache
def team() -> Begin | None:
    """What runs a function (its address, that of its argument, threads, 0) on all of the library's threads and this
    one, and waits for them; None where torch has no OpenMP.
    """
    try:
        begin = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    begin.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    begin.restype = None
    return begin


def work_off(program: Array) -> None:
    """Work off the lines on as many threads as torch has; on this one alone in a child process, which has none of its
    parent's threads, and where there is no team.
    """
    work, begin = step_loops().work(), team()
    alone = begin is None or os.getpid() != HOME
    threads = 1 if alone else min(torch.get_num_threads(), MOST)
    counts = np.zeros((threads + 1, len(program)), np.int64)
    job = np.array([program.ctypes.data, len(program), counts.ctypes.data, threads, 0])
    if begin is None or threads == 1:
        work.ctypes(job.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)))
    else:
        begin(work.address, job.ctypes.data, threads, 0)


# --- lines ---------------------------------------------------------------------------------------------


def matrix_fields(weight: Matrix) -> dict[str, int]:
    """How a line names a matrix (N, K), which has to stay alive; it is contiguous."""
    if isinstance(weight, Int8):
        kind, values, scales = BYTE, weight.values, weight.scales.data_ptr()
    else:
        kind, values, scales = KINDS[weight.dtype], weight, 0
    outputs, inputs = weight.shape
    return {
        **{"op": PRODUCT, "kind": kind, "weight": values.data_ptr(), "scales": scales},
        **{"inputs": inputs, "outputs": outputs},
        "tasks": -(-outputs // outputs_of_a_task(inputs, kind)),
    }


def run_line(**fields: Tensor | float | None) -> None:
    """Work off one line; of a tensor it takes the address."""
    program = np.zeros(1, LINE)
    for name, value in fields.items():
        if value is not None:
            program[name] = value.data_ptr() if isinstance(value, Tensor) else value
    if "units" in fields:  # a product's tasks are known
        deal(program)
    work_off(program)


def deal(lines: Array) -> None:
    """Units of lines become tasks, several for each thread."""
    units = lines["units"]
    lines["portion"] = np.clip(units // SHARES, 1, None)
    lines["tasks"] = np.where(units > 0, -(-units // lines["portion"]), lines["tasks"])


# Types of numbers that the loops read -> what they are called there.
KINDS = {torch.float32: FLOAT, torch.bfloat16: BRAIN}


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
