"""Linear layers: the fastest matmul for the input, one matmul for several layers, and recomputed activations.

    linear             few rows: instructions of the interpreter, because PyTorch reads the weight at half the memory
                       bandwidth or less; many bf16 rows and an int8 weight: int8 matmul, twice as fast as bf16
    linears            one matmul with the stacked weights
    activation_linear  saves the input of the activation instead of its output

They replace the operations of `nn.ops` with the same names. The first is for inference, the last for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from trifold.fast.compiled import interpreter
from trifold.fast.instruction import BFLOAT16, DEQUANTIZE, QUANTIZE
from trifold.fast.int8 import Int8Weight, Weight, int_mm_is_exact
from trifold.fast.int8_training import Int8TrainedLinear, int8_training_linear
from trifold.fast.thread_pool import DTYPES, execute_one, is_readable, matmul_fields
from trifold.nn.layers import Linear
from trifold.nn.ops import activation_linear as plain_activation_linear, linear as plain_linear

FEW_ROWS = 8  # up to here instructions are faster than a library
MIN_WEIGHTS = 2**20  # elements of a weight from which instructions are worth their compilation


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """See `nn.ops.linear`."""
    if suits_few_row_linear(x, weight):
        return few_row_linear(x, weight, bias).to(dtype or x.dtype)
    if isinstance(weight, Int8Weight) and suits_int8_linear(x, weight):
        return int8_linear(x, weight, bias, dtype)
    return plain_linear(x, weight, bias, dtype)  # type: ignore[arg-type]


# --- inference -----------------------------------------------------------------------------------------


def suits_few_row_linear(x: Tensor, weight: Weight) -> bool:
    """Whether x (..., K) has few rows and no gradient, and the weight (N, K) is large and readable."""
    return (
        x.shape[-1] * FEW_ROWS >= x.numel()
        and weight.shape[0] * weight.shape[1] >= MIN_WEIGHTS
        and not torch.is_grad_enabled()
        and is_readable(weight)
        and x.numel() > 0
        and interpreter() is not None
    )


def few_row_linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) in fp32, by an instruction."""
    out = torch.empty(*x.shape[:-1], weight.shape[0])
    bias = None if bias is None else bias.detach().float().contiguous()
    x_float = x.detach().float().contiguous()
    execute_one(**matmul_fields(weight), rows=x.numel() // x.shape[-1], x=x_float, out=out, bias=bias)
    return out


def suits_int8_linear(x: Tensor, weight: Int8Weight) -> bool:
    """Whether x (..., K) is bf16, has more than a few rows and no gradient, and the weight is not small."""
    return (
        x.dtype is torch.bfloat16
        and x.numel() > FEW_ROWS * x.shape[-1]
        and 4 * weight.shape[0] * weight.shape[1] >= MIN_WEIGHTS
        and not torch.is_grad_enabled()
        and weight.values.device.type == "cpu"
        and interpreter() is not None
        and int_mm_is_exact()
    )


def int8_linear(
    x: Tensor, weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) of `dtype`, by default that of x.

    x is quantized row by row, which costs about as much precision as the quantization of the weight.
    """
    x = x.contiguous()
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    x_int8, x_scales = torch.empty(rows, inputs, dtype=torch.int8), torch.empty(rows)
    sizes = {"rows": rows, "units": rows}
    execute_one(opcode=QUANTIZE, dtype=BFLOAT16, **sizes, inputs=inputs, x=x, out=x_int8, scales=x_scales)
    sums = torch._int_mm(x_int8, weight.values.t())
    dtype, shape = dtype or x.dtype, (*x.shape[:-1], outputs)
    # fp32 results overwrite their int32 sums.
    out = sums.view(dtype).view(shape) if dtype is torch.float32 else torch.empty(shape, dtype=dtype)
    bias = None if bias is None else bias.float()
    fields = {"x": sums, "weight": x_scales, "scales": weight.scales, "bias": bias, "out": out}
    execute_one(opcode=DEQUANTIZE, dtype=DTYPES[out.dtype], **sizes, outputs=outputs, **fields)
    return out


# --- several layers ------------------------------------------------------------------------------------


def linears(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """See `nn.ops.linears`.

    Stacking copies the weights. That pays for many tokens, but not for a few (one decoding step), where the layers are
    called one by one.
    """
    if x.numel() // x.shape[-1] < 64 or any(isinstance(layer.weight, Int8Weight) for layer in layers):
        return tuple(layer(x) for layer in layers)
    outputs: tuple[Tensor, ...] = concatenated_linears(x, layers).split(
        [len(layer.weight) for layer in layers], dim=-1
    )
    return outputs


def concatenated_linears(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, concatenated (..., sum of outputs)."""
    if any(isinstance(layer.weight, Int8Weight) for layer in layers):
        return torch.cat([layer(x) for layer in layers], -1)
    weight = torch.cat([layer.weight for layer in layers])
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    bias = torch.cat(biases) if biases else None
    if any(isinstance(layer, Int8TrainedLinear) for layer in layers):
        return int8_training_linear(x, weight, bias).to(x.dtype)
    return F.linear(x, weight, bias)


# --- recomputed activations ----------------------------------------------------------------------------

# Activations whose backward pass needs their output, so that recomputing it saves nothing.
OUTPUT_SAVED = (F.relu, torch.tanh)


def activation_linear(
    layer: Linear, activation: Callable[[Tensor], Tensor], x: Tensor, gated: Tensor | None = None
) -> Tensor:
    """See `nn.ops.activation_linear`. Saves x (and `gated`) and recomputes the activation in the backward pass, so it
    has no second derivative.

    Not for int8 weights and int8 training, layers with hooks, and graphs, whose compiler decides what to save.
    """
    trains = torch.is_grad_enabled() and (x.requires_grad or (gated is not None and gated.requires_grad))
    is_plain = type(layer) is Linear and not isinstance(layer.weight, Int8Weight)
    has_hooks = (
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )
    saves_output = gated is None and activation in OUTPUT_SAVED
    if not trains or not is_plain or saves_output or has_hooks or torch.compiler.is_compiling():
        return plain_activation_linear(layer, activation, x, gated)
    inputs = (x,) if gated is None else (x, gated)
    y: Tensor = _ActivationLinear.apply(activation, layer.weight, layer.bias, *inputs)  # type: ignore[no-untyped-call]
    return y


class _ActivationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activation: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None, *inputs: Tensor
    ) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(weight, *inputs)
        _, inner = _activate(activation, inputs)
        return F.linear(inner.detach(), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (weight, *inputs), needed = gradients, ctx.saved_tensors, ctx.needs_input_grad
        inputs, inner = _activate(ctx.activation, inputs)
        d_inputs = torch.autograd.grad(inner, inputs, g @ weight)
        flat = g.reshape(-1, g.shape[-1])
        d_weight = flat.mT @ inner.detach().reshape(-1, inner.shape[-1]) if needed[1] else None
        d_bias = flat.sum(0) if needed[2] else None
        return None, d_weight, d_bias, *d_inputs


def _activate(
    activation: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Copies of the inputs that require gradients, and the activation of the first, times the second if there is one.

    Gradients are enabled in both passes, because the choice of the kernel depends on it: both compute the same bits.
    The hooks separate this graph's tensors from those around it, such as activation checkpointing's.
    """
    with torch.enable_grad(), saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = activation(leaves[0])
        return leaves, y * leaves[1] if len(leaves) > 1 else y
