"""Blocks, and stacks of blocks.

A block has self-attention, optional cross-attention and a feed-forward network, each with a
residual connection. A stack has n layers, and a final norm if its blocks do not end with one
(placements pre and sandwich).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import call
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.attention import Attention, GlobalAttention, Memo, SummaryAttention
from trifold.nn.cache import Cache, LayerCache, StackInputs
from trifold.nn.config import ModelConfig
from trifold.nn.config_parts import Recurrence
from trifold.nn.experts import MixtureOfExperts
from trifold.nn.hooks import HookPoint
from trifold.nn.latent import LatentAttention
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, Residual, new_norm
from trifold.nn.linear_attention import KernelAttention, LowRankAttention
from trifold.nn.lsh import LSHAttention
from trifold.nn.masks import Mask, Rule
from trifold.nn.relative import OFFSETS, ScoreBias
from trifold.nn.reversible import Step, run_reversibly
from trifold.nn.rotary import Rotary, Rotation
from trifold.nn.rules import BlockSparse, Segment, Window, with_summaries
from trifold.nn.spans import SpanAttention, Spans, SpanStep


class LayerInputs(NamedTuple):
    """What every layer of a stack reads besides x: masks, a memory (B, S, E), and positions in
    attention scores.

    local_rotary: the rotations of layers with a window, if they have their own. memo: of a layer
        that is computed again.
    """

    mask: Mask
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    bias: ScoreBias | None = None
    rotary: Rotation | None = None
    local_rotary: Rotation | None = None
    memo: Memo | None = None


def self_attention(config: ModelConfig, layer: int) -> nn.Module:
    """The self-attention of that layer."""
    special = {
        "latent": config.latent,
        "global": config.global_projections,
        "summary": config.summary_block,
    }
    return ATTENTIONS[next((kind for kind, chosen in special.items() if chosen), config.attention)](
        config, layer
    )


ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "softmax": Attention,
    "global": GlobalAttention,
    "summary": SummaryAttention,
    "latent": LatentAttention,
    "elu": KernelAttention,
    "favor": KernelAttention,
    "low-rank": LowRankAttention,
    "spans": SpanAttention,
    "lsh": LSHAttention,
}


def feed_forward(config: ModelConfig, layer: int) -> nn.Module:
    """The network of that layer, or its mixture of experts."""
    has_experts = config.experts is not None and layer >= config.experts.dense_layers
    return MixtureOfExperts(config) if has_experts else FeedForward(config)


class Block(nn.Module):
    """Self-attention, cross-attention to a memory of that width, if any, and feed-forward."""

    def __init__(self, config: ModelConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__()
        self.self_attention = Residual(self_attention(config, layer), config)
        if layer == 0 and not config.first_norm:
            self.self_attention.enter = nn.Identity()
        cross = Attention(config, layer, memory_width=memory_width) if memory_width else None
        self.cross_attention = None if cross is None else Residual(cross, config)
        self.feed_forward = Residual(feed_forward(config, layer), config)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        x = self.self_attention(
            x, mask=inputs.mask, bias=inputs.bias, rotary=inputs.rotary, cache=cache
        )
        if self.cross_attention is not None:
            x = self.cross_attention(x, inputs.memory, mask=inputs.memory_mask, cache=cache)
        return self.feed_forward(x)

    def query_stream(self, g: Tensor, x: Tensor, inputs: LayerInputs) -> Tensor:
        """The query stream with the same weights: g (B, P, E) attends to x (B, T, E) -> (B, P,
        E).
        """
        g = self.self_attention(g, self.self_attention.enter(x), mask=inputs.mask, bias=inputs.bias)
        return self.feed_forward(g)


class ConvolutionBlock(Block):
    """norm(Block(x) + f(drop(y))), where y_t = Σ_j W_j x_{t+j} + b with |j| ≤ k // 2, and x is 0
    outside of the text (the first layer of DeBERTa v2, He et al. 2021).
    """

    def __init__(self, config: ModelConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__(config, layer, memory_width=memory_width)
        assert config.convolution is not None, "a config without convolution"
        width, kernel, groups = config.d_model, config.convolution.kernel, config.convolution.groups
        self.convolution = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=groups)
        self.drop, self.activation = (
            Dropout(config.dropout),
            ACTIVATIONS[config.convolution.activation],
        )
        self.convolved, self.norm = HookPoint(), new_norm(config)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        return self.norm(super().forward(x, inputs, cache) + self.convolve(x, inputs.mask))

    def convolve(self, x: Tensor, mask: Mask) -> Tensor:
        """f(drop(y)): x (B, T, E), or packed (1, N, E), -> the same shape."""
        packing = mask.packing
        x = x if packing is None else packing.grid(x)
        x = x if mask.keys is None else x.masked_fill(~mask.keys[..., None], 0)
        y = self.activation(self.drop(self.convolution(x.mT).mT.contiguous()))
        return self.convolved(y if packing is None else packing.flat(y))


class ReversibleBlock(Block):
    """y₁ = x₁ + drop(attention(norm x₂)),  y₂ = x₂ + drop(feed-forward(norm y₁))
                                                                   (Kitaev et al. 2020, equation 9).

    Both streams can be computed from the output, so the backward pass needs no other state
    (`run_reversibly`).
    """

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, 2·E), the first stream, then the second -> (B, T, 2·E)."""
        a, b = x.chunk(2, -1)
        for residual, options in self.steps(inputs, cache):
            a, b = b, residual(b, onto=a, **options)
        return torch.cat([a, b], -1)

    def steps(self, inputs: LayerInputs, cache: LayerCache | None = None) -> tuple[Step, Step]:
        """Attention and feed-forward network."""
        options = {
            "mask": inputs.mask,
            "bias": inputs.bias,
            "rotary": inputs.rotary,
            "cache": cache,
            "memo": inputs.memo,
        }
        return (self.self_attention, options), (self.feed_forward, {})


class ParallelBlock(nn.Module):
    """x + drop(attention(norm x) + feed-forward(norm x)), with one shared norm or two (Wang &
    Komatsuzaki 2021).

    Parameters are named as in a sequential pre-norm block; a shared norm is `self_attention.enter`.
    """

    def __init__(self, config: ModelConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__()
        assert memory_width is None, "a parallel block has no cross-attention"
        self.two_norms = config.residual == "parallel-two-norms"
        norm = new_norm(config) if self.two_norms else nn.Identity()
        parts = {
            "enter": new_norm(config),
            "sublayer": self_attention(config, layer),
            "output": HookPoint(),
        }
        self.self_attention = nn.ModuleDict(parts)
        parts = {"enter": norm, "sublayer": FeedForward(config), "output": HookPoint()}
        self.feed_forward = nn.ModuleDict(parts)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        normed = self.self_attention["enter"](x)
        positions = {"bias": inputs.bias, "rotary": inputs.rotary}
        attended = self.self_attention["sublayer"](
            normed, mask=inputs.mask, cache=cache, **positions
        )
        inner = self.feed_forward["sublayer"](
            self.feed_forward["enter"](x) if self.two_norms else normed
        )
        return self.drop.add(
            x, self.self_attention["output"](attended) + self.feed_forward["output"](inner)
        )


BLOCKS: dict[str, Callable[..., nn.Module]] = {
    "sequential": Block,
    "reversible": ReversibleBlock,
    "parallel": ParallelBlock,
    "parallel-two-norms": ParallelBlock,
}


class Stack(nn.Module):
    """n layers, of which several may share a block (`block_of_layer`). `states` are the hook points
    of their outputs.

    `run_block(block, …)` calls a block; training may replace it to recompute blocks in the backward
    pass.
    """

    def __init__(
        self, config: ModelConfig, side: Literal["encoder", "decoder"], *, crosses: bool = False
    ) -> None:
        super().__init__()
        memory_width = config.d_model if crosses else None
        config = config.decoder_side if side == "decoder" else config
        self.config = config
        self.run_block: Callable[..., Tensor] = call
        self.order = config.block_of_layer or tuple(range(config.n_layers))
        block = BLOCKS[config.residual]
        first = block if config.convolution is None else ConvolutionBlock
        self.blocks = nn.ModuleList(
            (block if layer else first)(config, layer, memory_width=memory_width)
            for layer in range(max(self.order) + 1)
        )
        self.states = nn.ModuleList(HookPoint("state") for _ in self.order)
        has_norm = config.has_final_norm(side)
        self.final_norm = new_norm(config, config.stream_width) if has_norm else nn.Identity()
        self.streams = 2 if config.residual == "reversible" else 1
        self.windows = [config.window(layer) for layer in range(len(self.order))]
        self.rotates = [config.rotates(layer) for layer in range(len(self.order))]
        self.rotary = Rotary(config) if config.positions == "rotary" else None
        self.local_rotary = None  # of layers with a window
        if self.rotary is not None and config.rotary_local_theta is not None:
            local = {"rotary_theta": config.rotary_local_theta, "rotary_scaling": None}
            self.local_rotary = Rotary(config.model_copy(update=local))
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
        """x (B, T, E) -> (B, T, E).

        positions: (B or 1, T), by default those of the mask. segments: (B, T), if scores depend on
        them.
        """
        config, count = self.config, x.shape[1]
        if cache is not None and cache.inputs is not None:
            x, mask = self._new_or_all(x, mask, cache, cache.inputs)
            assert positions is None or x.shape[1] == count, (
                "the positions of earlier tokens are not stored"
            )
        if cache is not None and config.attention == "lsh":
            # The cache stores x only. Every step computes all layers again, because new tokens
            # change what others read.
            assert positions is None, "the positions of earlier tokens are not stored"
            x = cache.layers[0].own.update(x[:, None], x[:, None, :, :0])[0][:, 0]
            return self(x, replace(mask, offset=0), memory, memory_mask)[:, -count:]
        if config.attention == "spans":
            if mask.offset and count > 1:
                outs = []
                for n, token in enumerate(x.split(1, 1), mask.offset):
                    keys = None if mask.keys is None else mask.keys[:, : n + 1]
                    outs.append(self(token, replace(mask, keys=keys, offset=n), cache=cache))
                return torch.cat(outs, 1)
            k = config.span_keys
            spans = (
                SpanStep(mask, x, k)
                if mask.offset
                else Spans(mask, x, k, all_levels=cache is not None)
            )
            return spans.tokens(self.run_layers(spans.rows(x), LayerInputs(spans.mask), cache))
        queries = x.shape[1] if mask.packing is None else mask.packing.shape[1]
        if config.recurrence is not None:
            if cache is None and torch.is_grad_enabled() and not self._is_watched():
                return self._recurrent(x, mask, config.recurrence)
            mask = _with_rule(mask, Segment(config.recurrence.size, config.recurrence.reach))
        if config.summary_block is not None:
            mask = with_summaries(mask, config.summary_block, queries, x.device)
        bias = None if self.offsets is None else self.offsets(mask, queries, x.device, segments)
        if self.rotary is not None and positions is None:
            positions = mask.positions(queries, x.device)[:, mask.offset : mask.offset + queries]
        rotary, local_rotary = (
            None if each is None or positions is None else each.rotation(positions, mask, x)
            for each in (self.rotary, self.local_rotary)
        )
        inputs = LayerInputs(mask, memory, memory_mask, bias, rotary, local_rotary)
        if cache is None:
            return self.run_layers(x, inputs)
        return ops.decoding_step(self, x, inputs, cache)[:, -count:]

    def _new_or_all(
        self, x: Tensor, mask: Mask, cache: Cache, stored: StackInputs
    ) -> tuple[Tensor, Mask]:
        """The new tokens x (B, T, E), or all if the rotations, and so the states, of earlier ones
        have changed.
        """
        before, stored.frequencies = (
            stored.frequencies,
            stored.find_frequencies(mask, x.shape[1], x.device),
        )
        changed = mask.offset > 0 and bool((before != stored.frequencies).any())
        if changed:
            cache.gather_beams()
            for layer in cache.layers:
                layer.own.clear()
        every = stored.update(x[:, None], x[:, None, :, :0])[0][:, 0]
        return (every, replace(mask, offset=0)) if changed else (x, mask)

    def run_layers(self, x: Tensor, inputs: LayerInputs, cache: Cache | None = None) -> Tensor:
        """One block after the other, then the final norm: x (B, T, E) -> (B, T, E), or two streams
        (B, T, 2·E).
        """
        x = x if self.streams == 1 else x.repeat(1, 1, self.streams)
        tokens = x.shape[1] if inputs.mask.packing is None else inputs.mask.packing.shape[1]
        # Hook points read the states between blocks, and blocks in shards, of another type, gather
        # their parameters.
        blocks = [
            block for number in self.order if type(block := self.blocks[number]) is ReversibleBlock
        ]
        if blocks and cache is None and torch.is_grad_enabled() and not self._is_watched():
            steps = list[Step]()
            for block, own in zip(blocks, self._layer_inputs(inputs, tokens), strict=True):
                steps += block.steps(own._replace(memo={}))
            return self.final_norm(run_reversibly(steps, x))
        caches: Sequence[LayerCache | None] = [None] * len(self.order)
        if cache is not None:
            cache.gather_beams()
            caches = cache.layers
        for number, own, state, layer_cache in zip(
            self.order, self._layer_inputs(inputs, tokens), self.states, caches, strict=True
        ):
            x = self.run_block(self.blocks[number], x, own, layer_cache)
            if (spans := own.mask.rule(Spans)) is None:
                x = state(x)
            elif state.watched:
                x = spans.rows(state(spans.tokens(x)), x[:, spans.starts[1] :])
        return self.final_norm(x)

    def _layer_inputs(self, inputs: LayerInputs, tokens: int = 0) -> list[LayerInputs]:
        """The inputs of each layer, with its window and rotations; equal ones are one value.

        Blocks of rows of so many tokens are a function of the layer.
        """
        found = dict[tuple[int | None, bool], LayerInputs]()
        for window, rotates in {*zip(self.windows, self.rotates, strict=True)}:
            rotary = inputs.rotary if window is None else inputs.local_rotary or inputs.rotary
            mask = inputs.mask if window is None else _with_rule(inputs.mask, Window(window))
            found[window, rotates] = inputs._replace(mask=mask, rotary=rotary if rotates else None)
        layers = [found[each] for each in zip(self.windows, self.rotates, strict=True)]
        if (sparse := self.config.sparse_blocks) is None:
            return layers
        mask, repeat = inputs.mask, sparse.only_in_training and not self.training
        sizes = tokens, sparse.size, self.config.n_heads, sparse.random
        for layer, own in enumerate(layers):
            blocks = BlockSparse.of(mask.keys, *sizes, seed=layer, repeat=repeat)
            layers[layer] = own._replace(mask=_with_rule(mask, blocks))
        return layers

    def _is_watched(self) -> bool:
        """Whether some hook point is: it then sees all tokens of a layer at once."""
        return any(getattr(module, "watched", False) for module in self.modules())

    def _recurrent(self, x: Tensor, mask: Mask, recurrence: Recurrence) -> Tensor:
        """Segment after segment: each layer also attends to its last inputs of the segments before,
        as constants (Dai et al. 2019, section 3.2). The values are those of the rule `Segment`;
        the gradients end at segments.
        """
        packing, attend, order = mask.packing, mask.keys, None
        if packing is not None:
            x, attend = packing.grid(x), packing.attend
        elif attend is not None:  # padding goes to the end
            order = attend.long().argsort(dim=1, descending=True, stable=True)[..., None]
            x, attend = x.gather(1, order.expand_as(x)), attend.gather(1, order[..., 0])
        memories, outs = [x[:, :0]] * len(self.order), []
        for start in range(0, x.shape[1], recurrence.size):
            part = x[:, start : start + recurrence.size]
            seen, stop = memories[0].shape[1], start + part.shape[1]
            keys = None if attend is None else attend[:, start - seen : stop]
            own = Mask(keys, causal=True, offset=seen)
            bias = (
                None if self.offsets is None else self.offsets(own, part.shape[1], x.device, None)
            )
            for layer, number in enumerate(self.order):
                context = torch.cat([memories[layer], part], 1)
                memories[layer] = context[:, max(0, context.shape[1] - recurrence.reach) :].detach()
                part = self.run_block(
                    self.blocks[number].query_stream, part, context, LayerInputs(own, bias=bias)
                )
                part = self.states[layer](part)
            outs.append(part)
        x = self.final_norm(torch.cat(outs, 1))
        x = x if order is None else x.gather(1, order.argsort(1).expand_as(x))
        return x if packing is None else packing.flat(x)

    def query_stream(
        self, g: Tensor, x: Tensor, mask: Mask, query_index: Tensor, segments: Tensor | None = None
    ) -> Tensor:
        """Two streams (Yang et al. 2019, equations 1 and 2): in every layer g (B, P, E), at the
        positions `query_index` (B, P), attends to x (B, T, E), and x to itself -> (B, P, E).
        """
        assert self.offsets is not None, "without offsets a query does not know its position"
        keys = mask.keys
        if keys is None:
            keys = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        query_mask = replace(mask, keys=keys, queries=query_index)
        relations = self.offsets(mask, x.shape[1], x.device, segments)
        query_relations = self.offsets(query_mask, g.shape[1], x.device, segments)
        inputs = self._layer_inputs(LayerInputs(mask, bias=relations))
        query_inputs = self._layer_inputs(LayerInputs(query_mask, bias=query_relations))
        for layer, number in enumerate(self.order):
            block = self.blocks[number]
            g = self.run_block(block.query_stream, g, x, query_inputs[layer])
            if layer + 1 < len(self.order):  # no layer reads the last x
                x = self.run_block(block, x, inputs[layer])
        return self.final_norm(g)


def _with_rule(mask: Mask, rule: Rule) -> Mask:
    return replace(mask, rules=(*mask.rules, rule))
