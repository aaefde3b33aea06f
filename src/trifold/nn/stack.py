"""A block is attention and feed-forward around a residual; a stack is blocks, and a final norm where the norms stand
inside the branches (pre, sandwich), since nothing else would norm the sum.

How a stack runs a block is a part of it too: straight, or keeping nothing but the input for the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from trifold.nn import ops
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
            return ops.decoding_step(self, x, mask, memory, memory_mask, cache, bias, rotary)
        return self.run_layers(x, mask, memory, memory_mask, None, bias, rotary)

    def run_layers(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None,
        memory_mask: Mask | None,
        cache: Cache | None,
        bias: Offsets | None,
        rotary: Turns | None,
    ) -> Tensor:
        """One block after the other, then the final norm: x (B, T, E) -> (B, T, E)."""
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
