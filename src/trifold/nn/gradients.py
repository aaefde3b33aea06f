"""Functions with a backward pass of their own, whose gradient is a constant to PyTorch."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """The backward pass of an autograd function, which raises RuntimeError if its own derivative
    is requested. PyTorch's `once_differentiable` gives wrong second derivatives where the gradient
    of an input is only a part of them.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Gradients:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "create_graph=True: this operation has no second derivatives; of fast operations, "
                "the plain ones have (trifold.fast.disabled()), but not those of linear attention "
                "and reversible blocks"
            )
        return backward(ctx, *gradients)

    return checked
