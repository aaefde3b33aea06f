"""A block is attention and feed-forward around a residual; a stack is blocks, and a final norm where the norms stand
inside the branches (pre, sandwich), since nothing else would norm the sum.

How a stack runs a block is a part of it too: straight, or keeping nothing but the input for the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trifold.fast.decoding_step import step
from trifold.fast.kernels import Redrawing, own_generator
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.hooks import Place
from trifold.nn.layers import Dropout, FeedForward, Residual, new_norm
from trifold.nn.masks import Mask
from trifold.nn.offsets import OFFSETS, Offsets
from trifold.nn.rotary import Rotary, Turns


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory to read, feed-forward."""

    def __init__(self, config: ModelConfig, layer: int = 0, *, crosses: bool) -> None:
        super().__init__()
        self.self_attention = Residual(Attention(config, layer), config)
        self.cross_attention = Residual(Attention(config, layer, crosses=True), config) if crosses else None
        self.feed_forward = Residual(FeedForward(config), config)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: LayerCache | None = None,
        *,
        bias: Offsets | None = None,
        rotary: Turns | None = None,
    ) -> Tensor:
        """x (B, T, E), memory (B, S, E) -> (B, T, E)."""
        x = self.self_attention(x, mask=mask, bias=bias, rotary=rotary, cache=cache)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask, cache=cache)
        return self.feed_forward(x)

    def ask(self, g: Tensor, x: Tensor, mask: Mask, *, bias: Offsets | None = None) -> Tensor:
        """A second stream by the same weights: g (B, P, E) asks, x (B, T, E) is what it reads -> (B, P, E)."""
        g = self.self_attention(g, self.self_attention.enter(x), mask=mask, bias=bias)
        return self.feed_forward(g)


class Branch(nn.Module):
    """sublayer(enter(x)): a residual's inside, under the same names."""

    def __init__(self, sublayer: nn.Module, config: ModelConfig, *, norms: bool) -> None:
        super().__init__()
        self.enter = new_norm(config) if norms else nn.Identity()
        self.sublayer = sublayer


class ParallelBlock(nn.Module):
    """x + drop(attention(norm x) + feed-forward(norm x)), with one norm for both or one each (Wang & Komatsuzaki 2021).

    The names are those of a sequential pre-norm block; with one norm it is the attention's.
    """

    def __init__(self, config: ModelConfig, layer: int = 0, *, crosses: bool) -> None:
        super().__init__()
        assert not crosses, "a parallel block reads no memory"
        self.two_norms = config.residual == "parallel-two-norms"
        self.self_attention = Branch(Attention(config, layer), config, norms=True)
        self.feed_forward = Branch(FeedForward(config), config, norms=self.two_norms)
        self.drop = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: LayerCache | None = None,
        *,
        bias: Offsets | None = None,
        rotary: Turns | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        normed = self.self_attention.enter(x)
        seen = self.self_attention.sublayer(normed, mask=mask, bias=bias, rotary=rotary, cache=cache)
        made = self.feed_forward.sublayer(self.feed_forward.enter(x) if self.two_norms else normed)
        return self.drop.added(x, seen + made)


BLOCKS: dict[str, Callable[..., nn.Module]] = {
    "sequential": Block,
    "parallel": ParallelBlock,
    "parallel-two-norms": ParallelBlock,
}


def straight(block: Callable[..., Any], *inputs: Any, **named: Any) -> Tensor:
    """block(…), and all that its way back needs is kept until then."""
    made: Tensor = block(*inputs, **named)
    return made


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
    common = own_generator() is None or inputs[0].device.type != "cpu"
    redrawing = Redrawing()
    return checkpoint(
        run,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=common,
        context_fn=lambda: (nullcontext(), redrawing),
    )


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


class Stack(nn.Module):
    """n layers, one after the other; `block_of_layer` may let several share a block. `states` name their outputs."""

    def __init__(
        self, config: ModelConfig, side: Literal["encoder", "decoder"], *, crosses: bool = False
    ) -> None:
        super().__init__()
        config = config.decoder_side if side == "decoder" else config
        self.run: Callable[..., Tensor] = straight
        self.order = config.block_of_layer or tuple(range(config.n_layers))
        block = BLOCKS[config.residual]
        self.blocks = nn.ModuleList(
            block(config, layer, crosses=crosses) for layer in range(max(self.order) + 1)
        )
        self.states = nn.ModuleList(Place("state") for _ in self.order)
        self.final_norm = new_norm(config) if config.closes(side) else nn.Identity()
        self.windows = [config.window(layer) for layer in range(len(self.order))]
        self.rotary = Rotary(config) if config.positions == "rotary" else None
        self.offsets = OFFSETS[config.positions](config) if config.positions in OFFSETS else None

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
        *,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E); `positions` (B or 1, T) where they differ from what the mask counts.

        segments (B, T), where it matters for the scores of which segment a token is.
        """
        queries = x.shape[1] if mask.packing is None else mask.packing.shape[1]
        bias = None if self.offsets is None else self.offsets(mask, queries, x.device, segments)
        rotary = None
        if self.rotary is not None:
            if positions is None:
                positions = mask.places(queries, x.device)[:, mask.offset : mask.offset + queries]
            rotary = self.rotary.turns(positions, mask, x)
        if cache is not None:
            stepped = step(self, x, mask, memory_mask, cache, bias, rotary)
            if stepped is not None:
                return stepped
            cache.settle()
        masks = {window: mask if window is None else replace(mask, window=window) for window in self.windows}
        caches = [None] * len(self.order) if cache is None else cache.layers
        for number, window, state, layer_cache in zip(
            self.order, self.windows, self.states, caches, strict=True
        ):
            block = self.blocks[number]
            x = self.run(block, x, masks[window], memory, memory_mask, layer_cache, bias=bias, rotary=rotary)
            x = state(x)
        return self.final_norm(x)

    def ask(self, g: Tensor, x: Tensor, mask: Mask, asked: Tensor, segments: Tensor | None = None) -> Tensor:
        """Two streams (Yang et al. 2019, equations 1 and 2) -> (B, P, E): in each layer g (B, P, E), which stands at
        the places `asked` (B, P), reads what x (B, T, E) is there, and x goes on by itself.
        """
        assert self.offsets is not None, "without offsets a question would not know where it stands"
        relations = self.offsets(mask, x.shape[1], x.device, segments)
        asked_relations = self.offsets(replace(mask, asked=asked), asked.shape[1], x.device, segments)
        masks = {window: replace(mask, window=window) for window in self.windows}
        asking = {window: replace(mask, window=window, asked=asked) for window in self.windows}
        for layer, (number, window) in enumerate(zip(self.order, self.windows, strict=True), start=1):
            block = self.blocks[number]
            g = self.run(block.ask, g, x, asking[window], bias=asked_relations)
            if layer < len(self.order):  # nobody reads what the last would make of it
                x = self.run(block, x, masks[window], bias=relations)
        return self.final_norm(g)
