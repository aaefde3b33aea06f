"""Reversible blocks: the backward pass computes their inputs from their outputs (Gomez et al. 2017, section 3).

A block is two steps (a, b) -> (b, a + f(b)): f is attention, then the feed-forward network. From (b, c) follows
a = c − f(b), so the forward pass stores the last two streams only, and for each step the state of the generator and
what f chose: the order in which LSH attention sorts the tokens, which may not change with the rounding of b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trifold.nn.cache import Choices, LayerCache
from trifold.nn.rng import thread_rng, use_thread_rng

if TYPE_CHECKING:
    from trifold.nn.stack import LayerInputs, ReversibleBlock


def run_reversibly(blocks: Sequence[ReversibleBlock], x: Tensor, inputs: Sequence[LayerInputs]) -> Tensor:
    """One block after the other: x (B, T, 2·E) -> (B, T, 2·E), with gradients equal up to rounding to those of the
    blocks. Masks and positions in `inputs` have no gradients.
    """
    parameters = {id(p): p for block in blocks for p in block.parameters() if p.requires_grad}
    layers = [*zip(blocks, inputs, strict=True)]
    out: Tensor = _Reversible.apply(layers, x, *parameters.values())  # type: ignore[no-untyped-call]
    return out


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layers: Sequence[tuple[ReversibleBlock, LayerInputs]], x: Tensor, *parameters: Tensor
    ) -> Tensor:
        a, b = x.chunk(2, -1)
        ctx.parameters, ctx.runs = [id(p) for p in parameters], []
        for block, inputs in layers:
            choices, states = Choices(), []
            for residual, options in block.steps(inputs, LayerCache(choices)):
                states.append((thread_rng() or torch.default_generator).get_state())
                a, b = b, residual(b, onto=a, **options)
            ctx.runs.append((block, inputs, choices.made, states))
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (b, c), (d_b, d_c) = ctx.saved_tensors, gradients[0].chunk(2, -1)
        found = dict[int, Tensor]()
        for block, inputs, made, states in reversed(ctx.runs):
            steps = block.steps(inputs, LayerCache(Choices(made)))
            for (residual, options), state in zip(reversed(steps), reversed(states), strict=True):
                parameters = [p for p in residual.parameters() if p.requires_grad]
                with torch.enable_grad(), use_thread_rng(torch.Generator().set_state(state)):
                    b = b.detach().requires_grad_()
                    change = residual(b, onto=torch.zeros_like(b), **options)
                d_change, *own = torch.autograd.grad(change, [b, *parameters], d_c, allow_unused=True)
                for key, gradient in zip(map(id, parameters), own, strict=True):
                    if gradient is not None:
                        found[key] = found[key] + gradient if key in found else gradient
                b, c = c - change.detach(), b.detach()
                d_b, d_c = d_c, d_b + d_change
        return None, torch.cat([d_b, d_c], -1), *(found.get(key) for key in ctx.parameters)
