"""A function of a long sequence, segment after segment: memory does not grow with what a segment
computes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trifold.nn.gradients import first_order

Step = Callable[..., tuple[Tensor, Tensor]]


def scan(step: Step, size: int, state: Tensor, *sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Apply step(*segments, state) -> (out, state) to segments of at most `size` tokens of
    sequences (B, H, T, …).

    Returns all outputs (B, H, T, …) and the last state. The backward pass computes each segment
    again and stores only the sequences and the states between segments. The step may not read other
    tensors that need gradients.
    """
    return _Scan.apply(step, size, state, *sequences)  # type: ignore[no-untyped-call]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: Step, size: int, state: Tensor, *sequences: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.step = step
        ctx.size = size
        states = []
        whole = None
        for start in range(0, sequences[0].shape[2], size):
            states.append(state)
            out, state = step(*(x[:, :, start : start + size] for x in sequences), state)
            if whole is None:
                # In the layout of merged heads, which then need no copy.
                rows, heads, _, *rest = out.shape
                whole = out.new_empty(rows, sequences[0].shape[2], heads, *rest).transpose(1, 2)
            whole[:, :, start : start + size] = out
        ctx.save_for_backward(*sequences, *states)
        ctx.count = len(sequences)
        assert whole is not None, "a sequence has tokens"
        if state is states[-1]:  # a step that does not change it; an input is no output
            state = state.clone()
        return whole, state

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, as checkpointing requires
        sequences = saved[: ctx.count]
        states = saved[ctx.count :]
        needed = ctx.needs_input_grad[3:]
        found = [
            torch.empty_like(x) if need else None for x, need in zip(sequences, needed, strict=True)
        ]
        d_out, d_state = gradients
        for number in reversed(range(len(states))):
            part = slice(number * ctx.size, (number + 1) * ctx.size)
            with torch.enable_grad():
                inputs = [
                    x[:, :, part].detach().requires_grad_(n)
                    for x, n in zip(sequences, needed, strict=True)
                ]
                state = states[number].detach().requires_grad_()
                outputs = ctx.step(*inputs, state)
            wanted = [x for x in (*inputs, state) if x.requires_grad]
            *of_inputs, d_state = torch.autograd.grad(
                outputs, wanted, (d_out[:, :, part], d_state), materialize_grads=True
            )
            for whole, gradient in zip((x for x in found if x is not None), of_inputs, strict=True):
                whole[:, :, part] = gradient
        return None, None, d_state, *found
