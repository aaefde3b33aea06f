"""One more token for every row, the whole stack in one compiled go; its ordinary twin is `Stack.forward`.

The layers are written down as lines for step_loops.py, once for each cache (program.py does that). What is not covered
takes the ordinary way: more rows than FEW, unless the weights are bytes; gradients, windows over padded rows, angles
that change with the length, modules or hooks that are none of ours, and stacks so small that compiled code would never
pay for its compiling.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from trifold.fast.compiled_decoder import Program, parts
from trifold.fast.int8 import Int8
from trifold.fast.int8_matmul import exact
from trifold.fast.int8_training import Int8TrainedLinear
from trifold.fast.thread_pool import FEW, KINDS, step_loops, suits
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, SlidingKeys
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, FeedForward, LayerNorm, Linear, RMSNorm
from trifold.nn.masks import Mask
from trifold.nn.ops import decoding_step as plain_decoding_step
from trifold.nn.relative import ScoreBias
from trifold.nn.rotary import Rotations

LEAST = 4 * 10**6  # weights of a stack
KNOWN = (
    Attention,
    FeedForward,
    Linear,
    Int8TrainedLinear,
    LayerNorm,
    RMSNorm,
    nn.Identity,
    Dropout,
    HookPoint,
)


def decoding_step(
    stack: Any,
    x: Tensor,
    mask: Mask,
    memory: Tensor | None,
    memory_mask: Mask | None,
    cache: Cache,
    bias: ScoreBias | None,
    rotary: Rotations | None,
) -> Tensor:
    """The compiled step where it covers the case, else the plain one."""
    out = step(stack, x, mask, memory_mask, cache, bias, rotary)
    if out is not None:
        return out
    return plain_decoding_step(stack, x, mask, memory, memory_mask, cache, bias, rotary)


def step(
    stack: Any,
    x: Tensor,
    mask: Mask,
    memory_mask: Mask | None,
    cache: Cache,
    bias: Any,
    rotary: Rotations | None,
) -> Tensor | None:
    """x (R, 1, E) -> (R, 1, E) as the stack would have it, the cache one token longer; None where it is not covered."""
    if x.shape[1] != 1 or torch.is_grad_enabled() or stack.training or cache.length == 0:
        return None
    if x.device.type != "cpu" or x.dtype not in KINDS or not x.numel():
        return None
    if mask.packing is not None or (rotary is not None and rotary.after_cache):
        return None
    if mask.keys is not None and any(window is not None for window in stack.windows):
        return None
    rows, known = x.shape[0], _programs.get(cache)
    if known is None or not known[0] <= rows <= known[1]:
        _programs[cache] = known = _written(stack, cache, x)
    program = known[2]
    if program is None or any(point.watched for point in program.hook_points):
        return None
    out = program.run(x, mask, memory_mask, cache, bias, rotary)
    cache.uses_beam_index = not any(isinstance(layer.own, SlidingKeys) for layer in cache.layers)
    return out


Known = tuple[int, int, Program | None]
"""For so many rows at least and at most: a program, or none."""

_programs: WeakKeyDictionary[Cache, Known] = WeakKeyDictionary()


def _written(stack: Any, cache: Cache, x: Tensor) -> Known:
    rows = x.shape[0]
    least, most = (1, FEW) if rows <= FEW else (FEW + 1, rows)
    return least, most, Program(stack, x, most, whole=rows > FEW) if covered(stack, cache, x) else None


def covered(stack: Any, cache: Cache, x: Tensor) -> bool:
    """Whether the loops know all that is in this stack, like so many rows, and it is large enough."""
    matrices = [module.weight for module in stack.modules() if isinstance(module, Linear)]
    if sum(weight.shape[0] * weight.shape[1] for weight in matrices) < LEAST:
        return False
    if x.shape[0] > FEW and not (
        x.dtype is torch.bfloat16 and all(isinstance(weight, Int8) for weight in matrices) and exact()
    ):
        return False
    inside = [part for block in stack.blocks for part in parts(block)]
    known = all(
        type(inner) in KNOWN for part in inside for inner in (*part.children(), *part.sublayer.children())
    )
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in stack.modules())
    kept = all(
        layer.own.buffers is not None and layer.own.buffers[0].dtype in KINDS for layer in cache.layers
    )
    fits = known and kept and not hooked and all(suits(weight) for weight in matrices)
    return fits and step_loops() is not None
