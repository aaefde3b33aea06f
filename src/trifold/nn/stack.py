"""A block is attention and feed-forward, each inside its residual; a stack is blocks, and a final norm where the
norms stand inside the branches (pre, sandwich), since nothing else would norm the sum.
"""

from __future__ import annotations

from torch import Tensor, nn

from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.layers import NORMS, FeedForward, Residual
from trifold.nn.masks import Mask


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory to read, feed-forward."""

    def __init__(self, config: ModelConfig, *, crosses: bool) -> None:
        super().__init__()
        self.self_attention = Residual(Attention(config), config)
        self.cross_attention = Residual(Attention(config), config) if crosses else None
        self.feed_forward = Residual(FeedForward(config), config)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, E), memory (B, S, E) -> (B, T, E)."""
        x = self.self_attention(x, mask=mask, cache=cache)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask, cache=cache)
        return self.feed_forward(x)


class Stack(nn.Module):
    """n blocks, one after the other."""

    def __init__(self, config: ModelConfig, layers: int, *, crosses: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, crosses=crosses) for _ in range(layers))
        closes = config.norm_placement != "post"
        self.final_norm = NORMS[config.norm](config) if closes else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        caches = [None] * len(self.blocks) if cache is None else cache.layers
        for block, layer_cache in zip(self.blocks, caches, strict=True):
            x = block(x, mask, memory, memory_mask, layer_cache)
        return self.final_norm(x)
