"""The one matrix product: y = x Wᵀ + b, alone or several on the same input in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from trifold.fast.int8 import Int8, Matrix
from trifold.fast.int8_matmul import bytes_product, many
from trifold.fast.thread_pool import thin, thin_product


def product(
    x: Tensor, weight: Matrix, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (…, K) times weight (N, K) transposed, plus bias (N,) -> (…, N), by the means that suits.

    Of the type of x; in float32 where it comes so (one that is rounded cannot be made whole again), or where `dtype`
    asks for it and that costs nothing.
    """
    if thin(x, weight):
        return thin_product(x, weight, bias)
    if isinstance(weight, Int8):
        if many(x, weight):
            return bytes_product(x, weight, bias, dtype)
        y = weight.times(x)
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)


class Linear(nn.Module):
    """weight (out, in), a parameter or of one byte a number; bias (out,) or None. `multiply` is how."""

    weight: Matrix
    multiply: Callable[[Tensor, Matrix, Tensor | None], Tensor] = staticmethod(product)

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        return self.multiply(x, self.weight, self.bias).to(x.dtype)

    def of(self, function: Callable[..., Tensor], *inner: Tensor) -> Tensor:
        """function(*inner) (…, in) -> (…, out), where the function is cheap, and the same whenever it is called.

        For the way back `inner` is kept, and not what the function makes of it, which is made again: there is no second
        derivative, then. Not so where weights are bytes, where others multiply (by bytes), where hooks wait for the
        layer's input, and in a graph, whose compiler chooses what to keep.
        """
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in inner)
        plain = self.multiply is product and not isinstance(self.weight, Int8)
        hooked = (
            self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        )
        if not learns or not plain or hooked or torch.compiler.is_compiling():
            return self(function(*inner))
        y: Tensor = _ProductOf.apply(function, self.weight, self.bias, *inner)  # type: ignore[no-untyped-call]
        return y

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}{'' if self.bias is not None else ', no bias'}"


class _ProductOf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, *inner: Tensor
    ) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(weight, *inner)
        _, x = _made(function, inner)
        return F.linear(x.detach(), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (weight, *inner), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        inner, x = _made(ctx.function, inner)
        below = torch.autograd.grad(x, inner, g @ weight)
        flat = g.reshape(-1, g.shape[-1])
        d_weight = flat.mT @ x.detach().reshape(-1, x.shape[-1]) if wanted[1] else None
        d_bias = flat.sum(0) if wanted[2] else None
        return None, d_weight, d_bias, *below


def _made(function: Callable[..., Tensor], inner: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Copies of `inner` that take gradients, and what the function gives of them.

    With gradients enabled on both ways, by which the compiled kernels are chosen: so both give the same bits. The hooks
    keep this graph's tensors from those around it, such as checkpointing's.
    """
    with torch.enable_grad(), saved_tensors_hooks(lambda x: x.detach(), lambda x: x):
        leaves = [x.detach().requires_grad_() for x in inner]
        return leaves, function(*leaves)


def fused(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """The outputs of several layers on one input, from a single product with their stacked weights.

    Stacking copies the weights, which costs out·in against the product's tokens·out·in: worth it for many
    tokens, not for a few (one decoding step), where the layers are called one by one.
    """
    if x.numel() // x.shape[-1] < 64 or any(isinstance(layer.weight, Int8) for layer in layers):
        return tuple(layer(x) for layer in layers)
    return stacked(x, layers).split([layer.weight.shape[0] for layer in layers], dim=-1)


def stacked(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, side by side (…, sum of outs), by the `multiply` one was given."""
    weights = [layer.weight for layer in layers if not isinstance(layer.weight, Int8)]
    if len(weights) < len(layers):
        return torch.cat([layer(x) for layer in layers], -1)
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    own = [layer.multiply for layer in layers if layer.multiply is not product]
    together = torch.cat(weights), torch.cat(biases) if biases else None
    return own[0](x, *together).to(x.dtype) if own else F.linear(x, *together)
