"""The precision of sums, losses and logits, which is at least float32."""

import torch
from torch import Tensor


def wide_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 if x has it."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it has it."""
    return x.to(wide_dtype(x))
