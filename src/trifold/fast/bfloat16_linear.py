"""Linear layers in bf16 on the CPU: a fused bias, and the gradients of weight and bias in training.

`F.linear` first writes the bias to every row of the output, a tenth of its time; oneDNN adds it to
its sums. The gradients of small weights are computed by `gradient_loops`.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import as_array, compiled_gradients, has_instructions, is_autocast, is_eager_cpu
from trifold.fast.matmul import has_dense_shapes, is_observed
from trifold.fast.processor import emulates_bf16_products

MANY_ROWS = 64  # from which a fused bias pays
MAX_WEIGHTS = 2**18  # elements of a weight up to which the loops are faster than oneDNN
WORDS = 32  # bf16 in a register
WIDENED = 2**20  # weights converted to fp32 at a time: their copy stays in a cache


def supports_bias_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether x (..., K) is bf16, has many rows and no gradient, and there is a bias in bf16."""
    if bias is None or not x.dtype is weight.dtype is bias.dtype is torch.bfloat16:
        return False
    if x.shape[-1] != weight.shape[1] or x.numel() < MANY_ROWS * x.shape[-1]:
        return False
    if torch.is_grad_enabled() or not is_eager_cpu(x) or is_autocast(x):
        return False
    return adds_bias()


def bias_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


@cache
def adds_bias() -> bool:
    """Whether the operator of `bias_linear`, which is internal to PyTorch, is right."""
    steps = torch.arange(24 * 40, device="cpu").view(24, 40)
    x, weight = steps.sin().bfloat16(), steps.cos().bfloat16()[:17]
    bias = weight[:, 0].clone()
    expected = F.linear(x.double(), weight.double(), bias.double())
    try:
        out = bias_linear(x, weight, bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(out.double(), expected, rtol=2**-8, atol=2**-8)


# --- processors without products of bf16 ----------------------------------------------------------


def supports_widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether x (..., K), weight (N, K) and bias (N,) are bf16 without a gradient, and a library
    would emulate their products.
    """
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if any(each.dtype is not torch.bfloat16 for each in tensors) or torch.is_grad_enabled():
        return False
    return is_eager_cpu(x) and not is_autocast(x) and emulates_bf16_products()


def widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N), computed in fp32 and rounded once. Parts
    of the weight are converted, to bound the memory of their fp32 copy.
    """
    wide = x.float()
    rows = max(1, WIDENED // weight.shape[1])
    out = torch.cat([F.linear(wide, part.float()) for part in weight.split(rows)], -1)
    if bias is not None:
        out += bias.float()
    return out.bfloat16()


# --- training -------------------------------------------------------------------------------------


def supports_trained_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether x (..., K), weight (N, K) and bias (N,) are dense in bf16, x has many rows, there is
    a gradient, and nothing but this function and autograd sees the tensors.
    """
    inputs = (x, weight) if bias is None else (x, weight, bias)
    if x.dtype is not torch.bfloat16 or x.numel() < MANY_ROWS * x.shape[-1]:
        return False
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in inputs):
        return False
    if not is_eager_cpu(x) or is_autocast(x) or is_observed():
        return False
    return has_dense_shapes(x, weight, bias) and adds_bias()


def trained_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N)."""
    return _TrainedLinear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _TrainedLinear(torch.autograd.Function):
    """Its backward pass is differentiable, as that of `F.linear`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_dx, needs_dw, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_dw else None, weight if needs_dx else None)
        return F.linear(x, weight) if bias is None else bias_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, weight), needed = gradients, ctx.saved_tensors, ctx.needs_input_grad
        d_x = g @ weight if needed[0] else None
        flat = g.reshape(-1, g.shape[-1])
        if not needed[1]:
            return d_x, None, flat.sum(0) if needed[2] else None
        flat_x = x.reshape(-1, x.shape[-1])
        if supports_parameter_gradients(flat, flat_x):
            return d_x, *parameter_gradients(flat, flat_x, needs_bias=needed[2])
        return d_x, flat.t() @ flat_x, flat.sum(0) if needed[2] else None


def supports_parameter_gradients(g: Tensor, x: Tensor) -> bool:
    """Whether the loops, which run on one thread, can compute the gradients from the gradient g
    (R, N) of outputs in bf16, and inputs x (R, K), and are faster; they have no derivative.
    """
    outputs, inputs = g.shape[1], x.shape[1]
    if outputs % WORDS or inputs % WORDS or outputs * inputs > MAX_WEIGHTS:
        return False
    if torch.is_grad_enabled() or torch.get_num_threads() > 1 or not is_eager_cpu(g):
        return False
    return compiled_gradients() is not None and has_instructions("bfloat16")


def parameter_gradients(g: Tensor, x: Tensor, *, needs_bias: bool) -> tuple[Tensor, Tensor | None]:
    """gᵀ · x (N, K), and the sum (N,) of g over its rows."""
    d_weight = torch.empty(g.shape[1], x.shape[1], dtype=g.dtype)
    d_bias = torch.empty(g.shape[1] if needs_bias else 0)
    compiled_gradients().weight_gradient(*map(as_array, (g, x, d_weight, d_bias)))
    return d_weight, d_bias.to(g.dtype) if needs_bias else None
