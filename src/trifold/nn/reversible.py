"""Reversible blocks: the backward pass computes their inputs from their outputs (Gomez et al. 2017, section 3).

A block is two steps (a, b) -> (b, a + f(b)): f is attention, then the feed-forward network. From (b, c) follows
a = c − f(b), so the forward pass stores the last two streams only, and for each step the state of the generator and
what f chose: the order in which LSH attention sorts the tokens, which may not change with the rounding of b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trifold.nn.cache import Choices, LayerCache
from trifold.nn.rng import thread_rng, use_thread_rng

if TYPE_CHECKING:
    from trifold.nn.stack import LayerInputs, ReversibleBlock


def run_reversibly(blocks: Sequence[ReversibleBlock], x: Tensor, inputs: Sequence[LayerInputs]) -> Tensor:
    """One block after the other: x (B, T, 2·E) -> (B, T, 2·E), with gradients equal up to rounding to those of the
    blocks. Masks and positions in `inputs` have no gradients.
    """
    steps = [
        (partial(run, inputs=own), [p for p in part.parameters() if p.requires_grad])
        for block, own in zip(blocks, inputs, strict=True)
        for run, part in ((block.attend, block.self_attention), (block.transform, block.feed_forward))
    ]
    parameters = {id(p): p for _, own in steps for p in own}
    out: Tensor = _Reversible.apply(steps, x, *parameters.values())  # type: ignore[no-untyped-call]
    return out


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: Sequence[tuple[Callable[..., Tensor], list[nn.Parameter]]],
        x: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        a, b = x.chunk(2, -1)
        ctx.steps, ctx.order, ctx.runs = steps, [id(p) for p in parameters], []
        for run, _ in steps:
            state, choices = (thread_rng() or torch.default_generator).get_state(), Choices()
            a, b = b, a + run(b, cache=LayerCache(choices))
            ctx.runs.append((state, choices.made))
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (b, c), (d_b, d_c) = ctx.saved_tensors, gradients[0].chunk(2, -1)
        found = dict[int, Tensor]()
        for (run, parameters), (state, made) in zip(reversed(ctx.steps), reversed(ctx.runs), strict=True):
            with torch.enable_grad(), use_thread_rng(torch.Generator().set_state(state)):
                b = b.detach().requires_grad_()
                change = run(b, cache=LayerCache(Choices(made)))
            d_change, *own = torch.autograd.grad(change, [b, *parameters], d_c, allow_unused=True)
            for parameter, gradient in zip(parameters, own, strict=True):
                if gradient is not None:
                    before = found.get(id(parameter))
                    found[id(parameter)] = gradient if before is None else before + gradient
            b, c = c - change.detach(), b.detach()
            d_b, d_c = d_c, d_b + d_change
        return None, torch.cat([d_b, d_c], -1), *(found.get(key) for key in ctx.order)
