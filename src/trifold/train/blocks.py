"""How the stacks of a model run their blocks in training: with recomputation in the backward pass, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trifold.nn.masks import Mask
from trifold.nn.rng import ReplayThreadRng, thread_rng
from trifold.nn.stack import Stack, straight


def recomputed(block: Callable[..., Any], *inputs: Any, **named: Any) -> Tensor:
    """block(…), of which only the inputs are kept: the way back runs it again (Chen et al. 2016, section 4).

    The same bits as `straight`, dropout too, in about a third more time.
    """
    if not torch.is_grad_enabled():
        return straight(block, *inputs, **named)

    def run(*inputs: Any) -> Tensor:
        # A mask remembers what it has made; the second run must make what the first one made.
        own = (replace(each) if isinstance(each, Mask) else each for each in inputs)
        return straight(block, *own, **named)

    # Common generators are kept by the library, for all threads at once: only where this one has none of its own.
    common = thread_rng() is None or inputs[0].device.type != "cpu"
    replay = ReplayThreadRng()
    out: Tensor = checkpoint(
        run,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=common,
        context_fn=lambda: (nullcontext(), replay),
    )
    return out


def recompute_blocks(model: nn.Module) -> None:
    """From now on the model's stacks keep only the inputs of their blocks for the way back."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            stack.run = recomputed


# Of the one function that all blocks share: a graph for each kind of mask, each window, each scale that a layer has.
MOST_GRAPHS = 128


def compile_blocks(model: nn.Module) -> None:
    """From now on the model's stacks run their blocks as graphs, each compiled when it is first met, `under_graphs`.

    Every size is a variable from the beginning. Hooks within a block are not heard any more, and the second of two
    streams (`ask`) stays as it is. What earlier models have compiled is forgotten, lest it count among the graphs of
    this one.
    """
    torch._dynamo.reset()
    for stack in model.modules():
        if isinstance(stack, Stack):
            for block in stack.blocks:
                block.forward = torch.compile(block.forward, dynamic=True)


def under_graphs() -> AbstractContextManager[None]:
    """While inside, a case beyond MOST_GRAPHS is an error. Left to the block itself, as is usual, it would draw other
    dropout, and a resumed run, which meets its cases in another order, would not be the same.
    """
    limits: AbstractContextManager[None] = torch._dynamo.config.patch(
        recompile_limit=MOST_GRAPHS, fail_on_recompile_limit_hit=True
    )
    return limits
