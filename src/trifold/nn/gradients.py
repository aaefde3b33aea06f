"""Functions with a backward pass of their own, whose gradient is a constant to PyTorch."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A backward pass that raises RuntimeError if its own derivative is requested. PyTorch's
    `once_differentiable` raises only where that derivative is the whole second derivative; where it
    is one term of several, it is left out.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Gradients:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "create_graph=True: this operation has no second derivatives; run the plain "
                "operations instead (within trifold.fast.disabled()). Linear attention and "
                "reversible blocks have none"
            )
        return backward(ctx, *gradients)

    return checked
