"""Reversible blocks: the backward pass computes their inputs from their outputs (Gomez et al. 2017,
section 3).

A block is two steps (a, b) -> (b, a + f(b)): f is attention, then the feed-forward network. From
(b, c) follows a = c − f(b), so the forward pass stores the last two streams only, and the state of
the generator before each step.
"""

from typing import Any

import torch
from torch import Tensor

from trifold.nn.gradients import first_order
from trifold.nn.layers import Residual
from trifold.nn.rng import thread_rng, use_thread_rng

Step = tuple[
    Residual, dict[str, Any]
]  # a residual, and the arguments of its sub-layer besides the state


def run_reversibly(steps: list[Step], x: Tensor) -> Tensor:
    """One step after the other: x (B, T, 2·E) -> (B, T, 2·E). The arguments of the steps have no
    gradients.
    """
    parameters = {
        p: None for residual, _ in steps for p in residual.parameters() if p.requires_grad
    }
    return _Reversible.apply(steps, x, *parameters)  # type: ignore[no-untyped-call]


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: list[Step], x: Tensor, *parameters: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        ctx.steps, ctx.parameters, ctx.states = steps, parameters, []
        for residual, options in steps:
            ctx.states.append((thread_rng() or torch.default_generator).get_state())
            a, b = b, residual(b, onto=a, **options)
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], -1)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (b, c), (d_b, d_c) = ctx.saved_tensors, gradients[0].chunk(2, -1)
        found = dict[Tensor, Tensor]()
        for (residual, options), state in zip(
            reversed(ctx.steps), reversed(ctx.states), strict=True
        ):
            own = [p for p in residual.parameters() if p.requires_grad]
            with torch.enable_grad(), use_thread_rng(torch.Generator().set_state(state)):
                b = b.detach().requires_grad_()
                change = residual(b, onto=torch.zeros_like(b), **options)
            d_change, *d_own = torch.autograd.grad(change, [b, *own], d_c, materialize_grads=True)
            for parameter, gradient in zip(own, d_own, strict=True):
                found[parameter] = found[parameter] + gradient if parameter in found else gradient
            b, c, d_b, d_c = c - change.detach(), b.detach(), d_c, d_b + d_change
        return None, torch.cat([d_b, d_c], -1), *(found[parameter] for parameter in ctx.parameters)
