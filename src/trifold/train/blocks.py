"""Options for the blocks of a model in training: recomputed in the backward pass (checkpointing),
or compiled.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trifold.nn.rng import recompute
from trifold.nn.stack import Stack
from trifold.nn.walk import LayerInputs

# All blocks share one compiled function, with a graph per kind of mask, window and scale of a
# layer.
MAX_GRAPHS = 128


def recomputed(block: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Tensor:
    """block(…), which saves only its inputs and runs again in the backward pass, in about a third
    more time.
    """

    def run(*inputs: Any) -> Any:
        # A mask caches its tensors; the second run must compute what the first one computed.
        return block(*map(_with_new_masks, inputs), **kwargs)

    return recompute(run, *inputs)


def _with_new_masks(value: Any) -> Any:
    """Inputs of a layer with copies of their masks; any other value as it is."""
    if not isinstance(value, LayerInputs):
        return value
    memory_mask = value.memory_mask
    if memory_mask is not None:
        memory_mask = replace(memory_mask)
    return value._replace(mask=replace(value.mask), memory_mask=memory_mask)


def recompute_blocks(model: nn.Module) -> None:
    """Make the stacks of a model recompute their blocks in the backward pass."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            stack.run_block = recomputed


def compile_blocks(model: nn.Module) -> None:
    """Compile the blocks of a model, each at its first call, which must be within `under_graphs`.

    All sizes are dynamic from the start. Hooks inside blocks no longer fire, and the query stream
    is not compiled, nor are blocks with modules whose shapes depend on values.
    Graphs of earlier models are discarded, so that they do not count towards the limit.
    """
    torch._dynamo.reset()
    for stack in model.modules():
        if isinstance(stack, Stack):
            for block in stack.blocks:
                if all(getattr(module, "has_fixed_shapes", True) for module in block.modules()):
                    block.forward = torch.compile(block.forward, dynamic=True)


def under_graphs() -> AbstractContextManager[None]:
    """Within this context, a case beyond MAX_GRAPHS is an error.

    By default PyTorch would run the block without a graph, which draws other dropout. A resumed run
    meets its cases in another order, so its results would differ.
    """
    limits: AbstractContextManager[None] = torch._dynamo.config.patch(
        recompile_limit=MAX_GRAPHS, fail_on_recompile_limit_hit=True
    )
    return limits
