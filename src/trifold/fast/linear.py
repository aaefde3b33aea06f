"""Linear layers: which of several matrix products suits, one product for several layers, and activations that are
recomputed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from trifold.fast.int8 import Int8
from trifold.fast.int8_matmul import bytes_product, many
from trifold.fast.int8_training import Int8TrainedLinear, product_by_bytes
from trifold.fast.thread_pool import thin, thin_product
from trifold.nn.layers import Linear
from trifold.nn.ops import activation_linear as plain_activation_linear
from trifold.nn.ops import linear as plain_linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Compiled loops for a few rows, int8 matmul for many rows and an int8 weight."""
    if thin(x, weight):
        return thin_product(x, weight, bias).to(dtype or x.dtype)
    if isinstance(weight, Int8) and many(x, weight):
        return bytes_product(x, weight, bias, dtype)
    return plain_linear(x, weight, bias, dtype)


def linears(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """A single product with the stacked weights of the layers.

    Stacking copies the weights, which costs out·in against the product's tokens·out·in: it pays for many tokens, not
    for a few (one decoding step), where the layers are called one by one.
    """
    if x.numel() // x.shape[-1] < 64 or any(isinstance(layer.weight, Int8) for layer in layers):
        return tuple(layer(x) for layer in layers)
    outputs: tuple[Tensor, ...] = stacked(x, layers).split([len(layer.weight) for layer in layers], dim=-1)
    return outputs


def stacked(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, side by side (…, sum of outs)."""
    if any(isinstance(layer.weight, Int8) for layer in layers):
        return torch.cat([layer(x) for layer in layers], -1)
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    together = torch.cat([layer.weight for layer in layers]), torch.cat(biases) if biases else None
    if any(isinstance(layer, Int8TrainedLinear) for layer in layers):
        return product_by_bytes(x, *together).to(x.dtype)
    return F.linear(x, *together)


# Activations whose backward pass needs their output, so that recomputing it saves nothing.
OUTPUT_SAVED = (F.relu, torch.tanh)


def activation_linear(
    layer: Linear, activation: Callable[[Tensor], Tensor], x: Tensor, gated: Tensor | None = None
) -> Tensor:
    """Saves x (and `gated`) for the backward pass and recomputes the activation there; it has no second derivative.

    Not for int8 weights and int8 training, layers with hooks, and graphs, whose compiler decides what to save.
    """
    trains = torch.is_grad_enabled() and (x.requires_grad or (gated is not None and gated.requires_grad))
    suits = type(layer) is Linear and not isinstance(layer.weight, Int8)
    hooked = (
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )
    kept = gated is None and activation in OUTPUT_SAVED
    if not trains or not suits or kept or hooked or torch.compiler.is_compiling():
        return plain_activation_linear(layer, activation, x, gated)
    inner = (x,) if gated is None else (x, gated)
    y: Tensor = _ActivationLinear.apply(activation, layer.weight, layer.bias, *inner)  # type: ignore[no-untyped-call]
    return y


class _ActivationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        activation: Callable[[Tensor], Tensor],
        weight: Tensor,
        bias: Tensor | None,
        *inner: Tensor,
    ) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(weight, *inner)
        _, x = _activated(activation, inner)
        return F.linear(x.detach(), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (weight, *inner), needed = gradients, ctx.saved_tensors, ctx.needs_input_grad
        inner, x = _activated(ctx.activation, inner)
        below = torch.autograd.grad(x, inner, g @ weight)
        flat = g.reshape(-1, g.shape[-1])
        d_weight = flat.mT @ x.detach().reshape(-1, x.shape[-1]) if needed[1] else None
        d_bias = flat.sum(0) if needed[2] else None
        return None, d_weight, d_bias, *below


def _activated(
    activation: Callable[[Tensor], Tensor], inner: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Copies of `inner` that require gradients, and the activation of the first, times the second if there is one.

    Gradients are enabled in both passes, because the compiled kernels are chosen by that: so both passes compute the
    same bits. The hooks keep this graph's tensors from those around it, such as activation checkpointing's.
    """
    with torch.enable_grad(), saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        leaves = [x.detach().requires_grad_() for x in inner]
        y = activation(leaves[0])
        return leaves, y * leaves[1] if len(leaves) > 1 else y
