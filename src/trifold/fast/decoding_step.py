"""The compiled decoding step: one more token for every row; replaces `nn.ops.decoding_step`.

The stack is translated into instructions once per cache (compiled_decoder.py) and executed by
interpreter.py. The plain step runs for everything that is not supported: more than FEW_ROWS rows,
unless all weights are int8; gradients; windows over padded rows; masks with other rules; unknown
blocks and modules; hooks; and stacks with fewer than MIN_WEIGHTS weights, for which the compilation
takes longer than it saves.
"""

from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from trifold.fast import compiled_interpreter, is_eager_cpu
from trifold.fast.compiled_decoder import CompiledDecoder, sublayers
from trifold.fast.instruction import ACTIVATIONS as INSTRUCTIONS
from trifold.fast.int8 import Int8Weight, int_mm_is_exact
from trifold.fast.int8_training import Int8TrainedLinear
from trifold.fast.layers import FEW_ROWS
from trifold.fast.thread_pool import DTYPES, is_readable
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import (
    ACTIVATIONS,
    Dropout,
    FeedForward,
    LayerNorm,
    Linear,
    RMSNorm,
)
from trifold.nn.masks import declares
from trifold.nn.ops import decoding_step as plain_decoding_step
from trifold.nn.packing import Packing
from trifold.nn.stack import Stack
from trifold.nn.walk import StackInputs

MIN_WEIGHTS = 4 * 10**6  # of a stack
WIRINGS = ("sequential", "parallel")  # of blocks that have instructions
SUPPORTED = (
    *(Attention, FeedForward, Linear, Int8TrainedLinear, LayerNorm, RMSNorm),
    *(nn.Identity, Dropout, HookPoint),
)


class Translation(NamedTuple):
    """A compiled decoder for a stack and some numbers of rows; None if it is not supported."""

    stack: ReferenceType[Stack]
    rows: range
    decoder: CompiledDecoder | None


_translations: WeakKeyDictionary[Cache, Translation] = WeakKeyDictionary()


def decoding_step(stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache) -> Tensor:
    """See `nn.ops.decoding_step`."""
    decoder = _compiled_decoder(stack, x, inputs, cache)
    if decoder is None:
        return plain_decoding_step(stack, x, inputs, cache)
    return decoder.run(x, inputs, cache)


def _compiled_decoder(
    stack: Stack, x: Tensor, inputs: StackInputs, cache: Cache
) -> CompiledDecoder | None:
    """The compiled decoder of this cache if it supports the step."""
    mask = inputs.mask
    if x.shape[1] != 1 or torch.is_grad_enabled() or stack.training or cache.length == 0:
        return None
    if not is_eager_cpu(x) or x.dtype not in DTYPES or not x.numel():
        return None
    if isinstance(mask.packing, Packing) or not mask.has_only():
        return None
    if inputs.memory_mask is not None and not inputs.memory_mask.has_only():
        return None
    if mask.keys is not None and any(window is not None for window in stack.windows):
        return None
    if stack.rules and not _has_only_windows(stack, inputs):
        return None
    rows = x.shape[0]
    found = _translations.get(cache)
    if found is None or rows not in found.rows or found.stack() is not stack:
        numbers = range(1, FEW_ROWS + 1) if rows <= FEW_ROWS else range(FEW_ROWS + 1, rows + 1)
        decoder = None
        if is_supported(stack, cache, x):
            decoder = CompiledDecoder(stack, x, numbers[-1], int8_matmul=rows > FEW_ROWS)
        _translations[cache] = found = Translation(ref(stack), numbers, decoder)
    return None if found.decoder is None or found.decoder.is_observed() else found.decoder


def _has_only_windows(stack: Stack, inputs: StackInputs) -> bool:
    """Whether the rules of each layer are the window that its instruction reads, or none."""
    for layer, window in zip(stack.layers(inputs, 1), stack.windows, strict=True):
        stated = [declares(rule, "window") and rule.window for rule in layer.mask.rules]
        read = [] if window is None else [window]
        if stated != read:
            return False
    return True


def is_supported(stack: Stack, cache: Cache, x: Tensor) -> bool:
    """Whether the stack is large enough and instructions exist for all its modules and this number
    of rows.
    """
    if any(declares(block, "wiring") not in WIRINGS for block in stack.blocks):
        return False
    weights = [module.weight for module in stack.modules() if isinstance(module, Linear)]
    if sum(weight.shape[0] * weight.shape[1] for weight in weights) < MIN_WEIGHTS:
        return False
    if x.shape[0] > FEW_ROWS and not (
        x.dtype is torch.bfloat16
        and all(isinstance(weight, Int8Weight) for weight in weights)
        and int_mm_is_exact()
    ):
        return False
    parts = [part for block in stack.blocks for part in sublayers(block)]
    modules = [module for part in parts for module in (*part.children(), *part.sublayer.children())]
    modules.append(stack.final_norm)
    stored = [layer.own.buffers for layer in cache.layers]
    return (
        all(type(module) in SUPPORTED and _has_instructions(module) for module in modules)
        and all(getattr(part, "scale", 1) == 1 for part in parts)
        and all(buffers is not None and buffers[0].dtype in DTYPES for buffers in stored)
        and all(is_readable(weight) for weight in weights)
        and compiled_interpreter() is not None
    )


def _has_instructions(module: nn.Module) -> bool:
    """Whether a module of a supported type has no part without an instruction."""
    if isinstance(module, Attention):
        return module.sinks is None
    if isinstance(module, FeedForward):
        name = module.activation_name
        is_known = name in INSTRUCTIONS and module.activation is ACTIVATIONS.get(name)
        return is_known and module.limit is None
    return not (isinstance(module, Dropout) and module.active)
