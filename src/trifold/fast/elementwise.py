"""Dropout, GELU and layer norm by the compiled loops, where they suit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import kernels
from trifold.nn.ops import add_dropout as plain_add_dropout
from trifold.nn.ops import dropout as plain_dropout
from trifold.nn.ops import gelu_tanh as plain_gelu_tanh
from trifold.nn.ops import layer_norm as plain_layer_norm


def dropout(x: Tensor, p: float) -> Tensor:
    """A loop with the mask of the plain definition; PyTorch's operator on other devices and in graphs."""
    if kernels.compiled(x) is not None:
        return kernels.dropped(x, p)
    return plain_dropout(x, p) if _on_cpu(x) else F.dropout(x, p)


def add_dropout(x: Tensor, y: Tensor, p: float) -> Tensor:
    """As `dropout`, in one pass with the addition."""
    if kernels.compiled(y) is not None:
        return kernels.added_dropped(x, y, p)
    return plain_add_dropout(x, y, p) if _on_cpu(y) else x + F.dropout(y, p)


def _on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def gelu_tanh(x: Tensor) -> Tensor:
    """One loop."""
    return plain_gelu_tanh(x) if kernels.compiled(x) is None else kernels.gelu_tanh(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """One loop, for norms with a bias."""
    if bias is None or kernels.compiled(x) is None:
        return plain_layer_norm(x, weight, bias, epsilon)
    return kernels.layer_norm(x, weight, bias, epsilon)
