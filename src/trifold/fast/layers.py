"""Embeddings, linear layers, dropout, GELU and layer norm; they replace the operations of `nn.ops`
with the same names.

embedding          quantized weights
linear             few rows: instructions of the interpreter, because PyTorch reads the weight at
                   half the memory bandwidth or less; bf16 rows and an int8 weight: int8 matmul,
                   twice as fast as bf16; many rows and a weight in blocks: bf16, in parts; many
                   fp32 rows: the library of `matmul`; many bf16 rows: `bfloat16_linear`
linears            one matmul with the stacked weights
activation_linear  saves the input of the activation instead of its output
the others         one compiled loop each, in training on a CPU in bf16 and fp32
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from trifold.fast import (
    as_array,
    compiled_interpreter,
    compiled_loops,
    copy_parameter,
    is_autocast,
    is_eager_cpu,
    supports_loops,
    trains_with_loops,
)
from trifold.fast.bfloat16_linear import (
    bias_linear,
    supports_bias_linear,
    supports_trained_linear,
    supports_widened_linear,
    trained_linear,
    widened_linear,
)
from trifold.fast.block_linear import (
    block_linear,
    block_linears,
    supports_block_linear,
    supports_block_linears,
)
from trifold.fast.block_weight import BlockWeight
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_linear import (
    has_hooks,
    int8_linear,
    int8_weight,
    is_int8,
    supports_int8_linear,
)
from trifold.fast.int8_training import Int8TrainedLinear, int8_training_linear
from trifold.fast.matmul import linear as float_linear, weight_gradient
from trifold.fast.openmp import adapt_to_contention
from trifold.fast.quantized_weight import QuantizedWeight, Weight
from trifold.fast.thread_pool import DTYPES, execute_one, few_rows, is_readable, matmul_fields
from trifold.nn.gradients import first_order
from trifold.nn.layers import ACTIVATIONS, Linear
from trifold.nn.ops import (
    activation_linear as plain_activation_linear,
    dropout as plain_dropout,
    gelu_tanh as plain_gelu_tanh,
    layer_norm as plain_layer_norm,
)
from trifold.nn.rng import thread_rng

MIN_WEIGHTS = 2**20  # elements of a weight from which instructions are worth their compilation
MIN_BLOCK_WEIGHTS = 2**16  # the same for blocks in bf16, whose plain product decodes all


def embedding(indices: Tensor, weight: Weight) -> Tensor:
    """See `nn.ops.embedding`. Called once per forward pass, and therefore adapts to other
    processes.
    """
    if is_eager_cpu(indices):
        adapt_to_contention()
    if isinstance(weight, QuantizedWeight):
        return weight.rows(indices)
    return F.embedding(indices, weight)


def linear(
    x: Tensor, weight: Weight, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """See `nn.ops.linear`."""
    if supports_few_row_linear(x, weight, bias):
        return few_row_linear(x, weight, bias).to(dtype or x.dtype)
    if not isinstance(weight, QuantizedWeight):
        return dense_linear(x, weight, bias).to(dtype or x.dtype)
    if isinstance(weight, BlockWeight) and supports_block_linear(x, weight):
        return block_linear(x, weight, bias, dtype)
    has_type = (dtype or x.dtype) in DTYPES
    if isinstance(weight, Int8Weight) and has_type and supports_int8_linear(x, weight):
        return int8_linear(x, weight, bias, dtype)
    return weight.linear(x, bias).to(dtype or x.dtype)


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) of a weight that is not quantized."""
    if supports_widened_linear(x, weight, bias):
        return widened_linear(x, weight, bias)
    if supports_bias_linear(x, weight, bias):
        return bias_linear(x, weight, bias)
    if supports_trained_linear(x, weight, bias):
        return trained_linear(x, weight, bias)
    return float_linear(x, weight, bias)


# --- inference ------------------------------------------------------------------------------------


def supports_few_row_linear(x: Tensor, weight: Weight, bias: Tensor | None) -> bool:
    """Whether x (..., K) has few rows and no gradient, the weight (N, K) is large and readable, and
    the sizes and types are those that the plain operation accepts.
    """
    outputs, inputs = weight.shape
    least = MIN_WEIGHTS
    if isinstance(weight, BlockWeight) and x.dtype is torch.bfloat16:
        least = min(least, MIN_BLOCK_WEIGHTS)
    if not 0 < x.numel() <= few_rows(weight) * x.shape[-1] or outputs * inputs < least:
        return False
    if x.shape[-1] != inputs or (bias is not None and bias.shape != (outputs,)):
        return False
    if torch.is_grad_enabled() or not is_eager_cpu(x) or x.dtype is torch.float64:
        return False
    return is_readable(weight) and compiled_interpreter() is not None


def few_row_linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) in fp32, by an instruction."""
    out = torch.empty(*x.shape[:-1], weight.shape[0])
    bias = None if bias is None else bias.detach().float().contiguous()
    x_float = x.detach().float().contiguous()
    execute_one(
        **matmul_fields(weight), rows=x.numel() // x.shape[-1], x=x_float, out=out, bias=bias
    )
    return out


# --- several layers -------------------------------------------------------------------------------


def linears(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """See `nn.ops.linears`.

    Stacking copies the weights. That pays for many tokens, but not for a few (one decoding step),
    where the layers are called one by one. Weights in blocks are not copied.
    """
    weights: list[Any] = [layer.weight for layer in layers]
    if all(map(is_plain, layers)) and supports_block_linears(x, weights):
        return block_linears(x, weights, [layer.bias for layer in layers])
    are_alike = all(map(is_matrix, layers)) or are_int8(layers)
    if x.numel() // x.shape[-1] < 64 or not are_alike:
        return tuple(layer(x) for layer in layers)
    sizes = [len(weight) for weight in weights]
    outputs: tuple[Tensor, ...] = concatenated_linears(x, layers).split(sizes, dim=-1)
    return outputs


def is_matrix(layer: nn.Module) -> bool:
    """Whether a layer is nothing but the product with a dense matrix."""
    return is_plain(layer) and not isinstance(layer.weight, QuantizedWeight)


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer is nothing but the product with a matrix: no adapter, no hook."""
    return type(layer) in (Linear, Int8TrainedLinear) and not has_hooks(layer)


def are_int8(layers: Sequence[Linear]) -> bool:
    """Whether one int8 matmul computes all layers. It has no gradient."""
    if torch.is_grad_enabled() or not all(map(is_int8, layers)):
        return False
    factors = [int8_weight(layer).factors for layer in layers]
    return all(each is factors[0] for each in factors)


def concatenated_linears(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, concatenated (..., sum of outputs)."""
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    bias = torch.cat(biases) if biases else None
    if are_int8(layers):
        return linear(x, Int8Weight.stacked([int8_weight(layer) for layer in layers]), bias)
    if not all(map(is_matrix, layers)):
        return torch.cat([layer(x) for layer in layers], -1)
    weight = torch.cat([layer.weight for layer in layers])
    if any(isinstance(layer, Int8TrainedLinear) for layer in layers):
        return int8_training_linear(x, weight, bias).to(x.dtype)
    return linear(x, weight, bias)


# --- recomputed activations -----------------------------------------------------------------------

# Activations whose backward pass needs their output, so that recomputing it saves nothing.
OUTPUT_SAVED = (F.relu, torch.tanh)
# Others may have parameters, or draw random numbers.
RECOMPUTED = frozenset(ACTIVATIONS.values())


def activation_linear(
    layer: Linear, activation: Callable[[Tensor], Tensor], x: Tensor, gated: Tensor | None = None
) -> Tensor:
    """See `nn.ops.activation_linear`. Saves x (and `gated`) and recomputes the activation in the
    backward pass, so it has no second derivative.

    Not for int8 weights and int8 training, layers with hooks, other activations than those of
    `nn.layers`, automatic casts, and graphs, whose compiler decides what to save.
    """
    if gated is None and supports_gelu(activation, x):
        y: Tensor = layer(gelu(x))
        return y
    if not _saves_input(layer, activation, x, gated):
        return plain_activation_linear(layer, activation, x, gated)
    inputs = (x,) if gated is None else (x, gated)
    return _ActivationLinear.apply(activation, layer.weight, layer.bias, *inputs)  # type: ignore[no-any-return, no-untyped-call]


def supports_gelu(activation: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether the activation is GELU, of bf16 without a gradient, on one thread."""
    if activation is not F.gelu or x.dtype is not torch.bfloat16 or torch.is_grad_enabled():
        return False
    return torch.get_num_threads() == 1 and supports_loops(x)


def gelu(x: Tensor) -> Tensor:
    """GELU by a polynomial, in half the time of the exact function."""
    return _elementwise(compiled_loops().gelu, x, x)


def _saves_input(
    layer: Linear, activation: Callable[[Tensor], Tensor], x: Tensor, gated: Tensor | None
) -> bool:
    """Whether recomputing the activation is possible and saves memory."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not (x.requires_grad or (gated is not None and gated.requires_grad)):
        return False
    if activation not in RECOMPUTED or (gated is None and activation in OUTPUT_SAVED):
        return False
    is_plain = type(layer) is Linear and is_matrix(layer)
    return is_plain and not is_autocast(x)


class _ActivationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        activation: Callable[[Tensor], Tensor],
        weight: Tensor,
        bias: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(weight, *inputs)
        _, inner = _activate(activation, inputs)
        return float_linear(inner.detach(), weight, bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (weight, *inputs), needed = gradients, ctx.saved_tensors, ctx.needs_input_grad
        inputs, inner = _activate(ctx.activation, inputs)
        d_inputs = torch.autograd.grad(inner, inputs, float_linear(g, weight.t()))
        flat = g.reshape(-1, g.shape[-1])
        flat_inner = inner.detach().reshape(-1, inner.shape[-1])
        d_weight = weight_gradient(flat, flat_inner) if needed[1] else None
        d_bias = flat.sum(0) if needed[2] else None
        return None, d_weight, d_bias, *d_inputs


def _activate(
    activation: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Copies of the inputs that require gradients, and the activation of the first, times the
    second if there is one.

    Gradients are enabled in both passes, because the choice of the kernel depends on it: both
    compute the same bits. The hooks separate this graph's tensors from those around it, such as
    activation checkpointing's.
    """
    with torch.enable_grad(), saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = activation(leaves[0])
        return leaves, y * leaves[1] if len(leaves) > 1 else y


# --- dropout, GELU, layer norm --------------------------------------------------------------------


def dropout(y: Tensor, p: float, x: Tensor | None = None) -> Tensor:
    """See `nn.ops.dropout`. The loop draws the same mask; on other devices and in graphs, PyTorch
    draws its own.
    """
    if trains_with_loops(y):
        return _Dropout.apply(x, y, p)  # type: ignore[no-any-return, no-untyped-call]
    if is_eager_cpu(y):
        return plain_dropout(y, p, x)
    return F.dropout(y, p) if x is None else x + F.dropout(y, p)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, p: float) -> Tensor:
        seed = int(torch.randint(2**32, (), generator=thread_rng()))
        threshold = round(p * 2**32)
        ctx.arguments = (
            np.uint32(seed),
            np.uint32(min(threshold, 2**32 - 1)),
            np.float32(1 / (1 - p)),
        )
        ctx.adds = x is not None
        return _elementwise(compiled_loops().dropout, y, x, y, *ctx.arguments)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_y = _elementwise(
            compiled_loops().dropout, gradients[0], None, gradients[0], *ctx.arguments
        )
        return gradients[0] if ctx.adds else None, d_y, None


def _elementwise(loop: Callable[..., None], like: Tensor, *inputs: Any) -> Tensor:
    """The output of a loop over all elements of its inputs, a tensor of the shape and type of
    `like`.
    """
    out = torch.empty(like.shape, dtype=like.dtype)
    loop(*(as_array(x).reshape(-1) if isinstance(x, Tensor) else x for x in (*inputs, out)))
    return out


def gelu_tanh(x: Tensor) -> Tensor:
    """See `nn.ops.gelu_tanh`."""
    if not trains_with_loops(x):
        return plain_gelu_tanh(x)
    return _GeluTanh.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _elementwise(compiled_loops().gelu_tanh, x, x)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        (x,) = ctx.saved_tensors
        return (_elementwise(compiled_loops().gelu_tanh_backward, x, gradients[0], x),)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """See `nn.ops.layer_norm`. Norms without a bias use the plain operation."""
    if bias is None or not trains_with_loops(x):
        return plain_layer_norm(x, weight, bias, epsilon)
    out: Tensor = _LayerNorm.apply(x.reshape(-1, x.shape[-1]), weight, bias, epsilon)  # type: ignore[no-untyped-call]
    return out.view(x.shape)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        copied = copy_parameter(weight)
        if x.dtype is torch.bfloat16:
            out = torch.empty(x.shape, dtype=x.dtype)
            mean, inverse_std = torch.empty(2, len(x))
            parameters = copied, copy_parameter(bias)
            arrays = map(as_array, (out, mean, inverse_std))
            compiled_loops().layer_norm(*map(as_array, (x, *parameters)), epsilon, *arrays)
        else:  # below half a percent of an update in fp32
            out, *moments = torch.native_layer_norm(
                x, weight.shape, weight.float(), bias.float(), epsilon
            )
            mean, inverse_std = (each.flatten() for each in moments)
        ctx.save_for_backward(x, copied, mean, inverse_std)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *moments = ctx.saved_tensors
        d_x = torch.empty(x.shape, dtype=x.dtype)
        sums = torch.empty(2, x.shape[1])
        compiled_loops().layer_norm_backward(
            *map(as_array, (gradients[0], x, weight, *moments, d_x, sums))
        )
        return d_x, *sums.to(weight.dtype), None
