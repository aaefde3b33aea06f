"""Access to the modules that Numba compiles. Numba is optional: without it, the plain operations run."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


@cache
def loops() -> Any:
    """The module of training loops, or None if Numba is not installed."""
    return _import("loops")


@cache
def interpreter() -> Any:
    """The module that executes the instructions of decoding steps, or None if Numba is not installed."""
    return _import("interpreter")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(f"trifold.fast.{name}")
    except ImportError:
        return None


def supports_loops(x: Tensor) -> bool:
    """Whether the loops can run on x: bf16 or fp32 on a CPU, and not in a graph, whose compiler fuses operators."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    return x.dtype in (torch.bfloat16, torch.float32) and loops() is not None


def trains_with_loops(x: Tensor) -> bool:
    """Whether the loops can run on x and it requires a gradient. Inference uses the operators of PyTorch."""
    return torch.is_grad_enabled() and x.requires_grad and supports_loops(x)


def as_array(x: Tensor) -> NDArray[Any]:
    """The memory of x as an array, bf16 as uint16. A tensor that is not contiguous is copied."""
    x = x.detach().contiguous()
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()


def copy_parameter(parameter: Tensor) -> Tensor:
    """A copy for the loops: an array would keep the storage of a sharded parameter from being freed."""
    return parameter.detach().clone()
