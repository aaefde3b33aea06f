"""fp32 matmuls with oneDNN, where it is faster than the library of PyTorch's operators.

`F.linear` in fp32 calls MKL, which on AMD's processors uses AVX2. oneDNN, a part of PyTorch too,
uses AVX-512. On Zen 4 it is faster by a tenth (benchmarks/matmuls.py). On Zen 5 single
products took half the time; the rule for Zen 5 has not been measured.

The library is chosen by processor and shape only, so that two processes on one machine compute the
same bits. The environment variable TRIFOLD_FP32_MATMUL chooses it otherwise: `pytorch` or `onednn`.
oneDNN is called by an operator for PyTorch's compiler, which a check compares with float64 first.
"""

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.fast import is_autocast, is_eager_cpu

VARIABLE = "TRIFOLD_FP32_MATMUL"
CHOICES = ("auto", "pytorch", "onednn")


class MatmulRule(NamedTuple):
    """The sizes from which oneDNN is used for x (R, K) · weight (N, K)ᵀ.

    rows, width, size: at least of R, of K and N, and of R · K · N. Below, preparing oneDNN's code
    for a shape takes longer than it saves.
    reuse: at least of N if x is not contiguous, because oneDNN copies such an x (1 ns an element).
    even, uneven_size: with fewer rows than `even`, of which oneDNN gives two threads uneven shares,
    R · K · N is at least `uneven_size`.
    """

    rows: int
    width: int
    size: int
    reuse: int
    even: int = 0
    uneven_size: int = 0


# On Zen 4 the copy costs more than oneDNN saves, with any number of outputs.
ZEN_4 = MatmulRule(rows=1024, width=128, size=2**26, reuse=2**62, even=1280, uneven_size=2**29)
ZEN_5 = MatmulRule(rows=128, width=128, size=2**25, reuse=384)
# The layers and steps of a decoder multiply matrices of the same sizes again and again, so that the
# preparation is short from fewer rows on. Measured on Zen 4.
REPEATED = MatmulRule(rows=64, width=512, size=2**24, reuse=2**62)
# Vendor and family of a processor with AVX-512 -> its rule.
RULES = {("AuthenticAMD", 25): ZEN_4, ("AuthenticAMD", 26): ZEN_5}


def processor_family() -> tuple[str, int] | None:
    """Vendor and family of this processor, such as ("AuthenticAMD", 26); None if unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:  # on Windows "AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD"
        found = re.search(r"Family (\d+) .*, (\w+)$", platform.processor())
        return (found[2], int(found[1])) if found else None
    vendor = re.search(r"^vendor_id\s*: (\w+)$", text, re.MULTILINE)
    family = re.search(r"^cpu family\s*: (\d+)$", text, re.MULTILINE)
    return (vendor[1], int(family[1])) if vendor and family else None


@cache
def rule() -> MatmulRule | None:
    """The rule of this process; None if PyTorch's library computes all fp32 matmuls. Raises
    UsageError for an unknown value of the environment variable.
    """
    choice = os.environ.get(VARIABLE, CHOICES[0])
    if choice not in CHOICES:
        raise UsageError(f"{VARIABLE}={choice}: set one of {', '.join(CHOICES)}")
    if choice == "pytorch" or not _is_exact():
        return None
    family = processor_family()
    found = RULES.get(family) if family and torch.cpu._is_avx512_supported() else None
    return found or ZEN_4 if choice == "onednn" else found


def library() -> str:
    """The library of large fp32 matmuls on the CPU: `onednn` or `pytorch`."""
    return "pytorch" if rule() is None else "onednn"


@cache
def _is_exact() -> bool:
    """Whether the operator computes x · weightᵀ + bias of all layouts that it is called with."""
    steps = torch.arange(24 * 40, dtype=torch.float64, device="cpu").view(24, 40)
    x, weight = steps.sin(), steps.cos()[:17]
    bias = weight[:, 0]
    expected = F.linear(x, weight, bias)
    layouts = (
        (x.float(), weight.float()),
        (x.t().float().t(), weight.t().float().t()),
    )
    try:
        outs = [onednn_linear(*each, bias.float()).double() for each in layouts]
    except (AttributeError, RuntimeError, TypeError):
        return False
    return all(torch.allclose(out, expected, rtol=0, atol=1e-5) for out in outs)


# --- matmuls --------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, K) · weight (N, K)ᵀ + bias (N,) -> (…, N), as `F.linear`."""
    if not supports_onednn_linear(x, weight, bias):
        return F.linear(x, weight, bias)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        return _OnednnLinear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return onednn_linear(x, weight, bias)


def repeated_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`linear` without a gradient, of sizes that occur many times."""
    if rule() is not None and supports_onednn_linear(x, weight, None, REPEATED):
        return onednn_linear(x, weight, None)
    return linear(x, weight)


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a (R, K) · b (K, N) -> (R, N), without a gradient. out: memory that the result may use."""
    if supports_onednn_linear(a, b.t(), None):
        return onednn_linear(a, b.t(), None)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total (R, N) += a (R, K) · b (K, N), without a gradient."""
    if supports_onednn_linear(a, b.t(), None):
        total += onednn_linear(a, b.t(), None)
    else:
        total.addmm_(a, b)


def weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """gᵀ · x (N, K) of the gradient g (R, N) of the outputs, and the inputs x (R, K)."""
    if g.shape[1] > x.shape[1] and supports_onednn_linear(x.t(), g.t(), None):
        return linear(x.t(), g.t()).t()  # oneDNN copies the first, here the smaller matrix
    if supports_onednn_linear(g.t(), x.t(), None):
        return linear(g.t(), x.t())
    return g.t() @ x


def supports_onednn_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, least: MatmulRule | None = None
) -> bool:
    """Whether a rule, by default that of this process, has the shape, and nothing but this function
    and autograd sees the tensors.
    """
    if x.dtype is not torch.float32 or not is_eager_cpu(x):
        return False
    least = least or rule()
    size = x.numel() * weight.shape[0]
    if least is None or size < least.size or size == 0:
        return False
    if is_autocast(x) or is_observed() or not has_dense_shapes(x, weight, bias):
        return False
    outputs, inputs = weight.shape
    if min(inputs, outputs) < least.width or x.numel() < least.rows * inputs:
        return False
    if x.numel() < least.even * inputs and size < least.uneven_size:
        return False
    return outputs >= least.reuse or x.is_contiguous()


def has_dense_shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are dense matrices of one type on one device, of sizes that fit, and not of
    another class, such as sharded or traced ones.
    """
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not all(type(each) in (Tensor, nn.Parameter) for each in tensors):
        return False
    if any(each.dtype is not x.dtype or each.device != x.device for each in tensors):
        return False
    if any(each.layout is not torch.strided for each in tensors):
        return False
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return False
    if not _is_matrix(weight) and not _is_matrix(weight.t()):
        return False
    return bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous())


def _is_matrix(x: Tensor) -> bool:
    """Whether the rows of x are contiguous and do not overlap."""
    return x.stride(1) == 1 and x.stride(0) >= x.shape[1]


def is_observed() -> bool:
    """Whether a mode or transform of PyTorch sees each operator: it does not know oneDNN's."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (…, K) · weight (N, K)ᵀ + bias (N,) -> (…, N), without a gradient."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


class _OnednnLinear(torch.autograd.Function):
    """Its backward pass is differentiable, as that of `F.linear`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_dx, needs_dw, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_dw else None, weight if needs_dx else None)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, weight), needed = gradients, ctx.saved_tensors, ctx.needs_input_grad
        flat = g.reshape(-1, g.shape[-1])
        dx = linear(g, weight.t()) if needed[0] else None
        dw = weight_gradient(flat, x.reshape(-1, x.shape[-1])) if needed[1] else None
        db = flat.sum(0) if needed[2] else None
        return dx, dw, db
