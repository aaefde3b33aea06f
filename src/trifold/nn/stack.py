"""Blocks, and stacks of blocks.

A block has self-attention, optional cross-attention and a feed-forward network, each with a
residual connection. A stack has n layers, and by default a final norm, unless its blocks end with
one (placement post).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from operator import call
from typing import Literal

import torch
from torch import Tensor, nn

from trifold.nn.attention import ScoreBias
from trifold.nn.cache import KEYS, Cache, LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.copies import copy_of
from trifold.nn.explain import Steps
from trifold.nn.hooks import HookPoint
from trifold.nn.inputs import Request
from trifold.nn.layers import Residual
from trifold.nn.masks import Mask, Rule
from trifold.nn.norms import new_norm
from trifold.nn.parts import (
    AttentionPart,
    BlockPart,
    FeedForwardPart,
    ScoresPart,
    WalkPart,
    cross_attention,
    part_of,
    parts,
    rules_of,
)
from trifold.nn.registry import set_classical
from trifold.nn.rotary import Rotation
from trifold.nn.walk import LayerInputs, StackInputs, in_order

Side = Literal["encoder", "decoder"]


class Block(nn.Module):
    """Self-attention, cross-attention to a memory of that width, if any, and feed-forward.

    wiring: how `forward` connects the sub-layers, for kernels that replace it; each class states
        its own (`masks.declares`).
    """

    wiring = "sequential"

    def __init__(self, config: CoreConfig, layer: int = 0, *, memory_width: int | None) -> None:
        super().__init__()
        attention = part_of(AttentionPart, config).new(config, layer)
        self.self_attention = Residual(attention, config)
        if layer == 0 and not config.first_norm:
            self.self_attention.enter = nn.Identity()
        self.cross_attention: Residual | None = None
        if memory_width is not None:
            cross = cross_attention(config).new_cross(config, layer, memory_width)
            self.cross_attention = Residual(cross, config)
        feed_forward = part_of(FeedForwardPart, config).new(config, layer)
        self.feed_forward = Residual(feed_forward, config)

    def forward(self, x: Tensor, inputs: LayerInputs, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, E) -> (B, T, E)."""
        x = self.self_attention(x, **inputs.self_attention(cache))
        if self.cross_attention is not None:
            x = self.cross_attention(x, inputs.memory, mask=inputs.memory_mask, cache=cache)
        return self.feed_forward(x)

    def attend_to(self, g: Tensor, x: Tensor, inputs: LayerInputs) -> Tensor:
        """The block for other queries, with the same weights: g (B, P, E) attends to x (B, T, E)
        -> (B, P, E).
        """
        g = self.self_attention(g, self.self_attention.enter(x), mask=inputs.mask, bias=inputs.bias)
        return self.feed_forward(g)

    def explain(self, steps: Steps, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """See `nn.explain`."""
        for part in ("self_attention", "cross_attention", "feed_forward"):
            if (residual := getattr(self, part)) is not None:
                x = steps.residual(residual, x, inputs, f"{name}.{part}")
        return x


class SequentialPart(BlockPart):
    """One sub-layer after the other."""

    key = "residual"

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        return Block(config, layer, memory_width=memory_width)

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        is_first = layer == 0 and not config.first_norm
        sublayers = (
            part_of(AttentionPart, config),
            cross_attention(config),
            part_of(FeedForwardPart, config),
        )
        return (is_first, *(part.kind_of_layer(config, layer) for part in sublayers))


class NoScores(ScoresPart):
    """Positions that do not change scores."""

    key = "positions"
    is_packed = True


set_classical(SequentialPart())
set_classical(NoScores())


class Stack(nn.Module):
    """n layers, of which several may share a block (`block_of_layer`). `states` are the hook points
    of their outputs.

    `run_block(block, …)` calls a block; training may replace it to recompute blocks in the backward
    pass.
    """

    def __init__(self, config: CoreConfig, side: Side, *, crosses: bool = False) -> None:
        super().__init__()
        memory_width = config.d_model if crosses else None  # d_model of the encoder
        if side == "decoder":
            config = config.decoder_side
        block = part_of(BlockPart, config)
        scores = part_of(ScoresPart, config)
        self.config = config
        self.run_block: Callable[..., Tensor] = call
        self.block_of_layer = config.block_of_layer or tuple(range(config.n_layers))
        count = max(self.block_of_layer) + 1
        self.blocks = nn.ModuleList(_new_blocks(block, config, memory_width, count))
        self.states = nn.ModuleList(HookPoint("state") for _ in self.block_of_layer)
        has_norm = config.has_final_norm(side)
        self.final_norm = new_norm(config, config.stream_width) if has_norm else nn.Identity()
        self.streams = block.streams
        window = part_of(AttentionPart, config).window
        self.windows = [window(config, layer) for layer in range(len(self.block_of_layer))]
        self.rules = rules_of(config)
        self.walk = part_of(WalkPart, config)
        self.rotary = scores.new_rotary(config)
        self.offsets = scores.new_offsets(config)

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
        """x (B, T, E) -> (B, T, E). Other arguments: see `Request`."""
        return self.run(x, Request(mask, memory, memory_mask, positions, segments), cache)

    def run(self, x: Tensor, request: Request, cache: Cache | None) -> Tensor:
        """x (B, T, E) -> (B, T, E). In training the layers run as the walk says (`WalkPart`)."""
        trains = cache is None and torch.is_grad_enabled()
        if trains and not self.is_watched():
            return self.walk.run(self, x, request)
        return in_order(self, x, request, cache)

    def inputs(self, x: Tensor, request: Request) -> StackInputs:
        """What the layers read."""
        mask = request.mask
        queries = request.mask.count(x)
        for part in self.rules:
            mask = part.of_stack(self.config, mask, queries, x.device)
        return self.with_positions(x, request._replace(mask=mask))

    def with_positions(self, x: Tensor, request: Request) -> StackInputs:
        """The request with positions in scores."""
        mask, memory, memory_mask, positions, segments = request
        queries = mask.count(x)
        bias: ScoreBias | None = None
        if self.offsets is not None:
            bias = self.offsets(mask, queries, x.device, segments)
        rotations: Sequence[Rotation | None] = ()
        if self.rotary is not None:
            rotations = self.rotary(mask, queries, x, positions)
        return StackInputs(mask, memory, memory_mask, bias, rotations)

    def layers(self, inputs: StackInputs, queries: int) -> list[LayerInputs]:
        """The inputs of each layer, with its rules and its rotation; equal ones are one value."""
        by_rules = dict[tuple[int, ...], LayerInputs]()
        layers = []
        rotations = inputs.rotations or [None] * len(self.block_of_layer)
        for layer, rotary in enumerate(rotations):
            rules = self._rules_of_layer(layer, inputs.mask, queries)
            key = (id(rotary), *map(id, rules))
            if key not in by_rules:
                mask = inputs.mask
                for rule in rules:
                    mask = mask.with_rule(rule)
                by_rules[key] = LayerInputs(
                    mask, inputs.memory, inputs.memory_mask, inputs.bias, rotary
                )
            layers.append(by_rules[key])
        return layers

    def _rules_of_layer(self, layer: int, mask: Mask, queries: int) -> list[Rule]:
        rules = (
            part.of_layer(self.config, layer, mask, queries, training=self.training)
            for part in self.rules
        )
        return [rule for rule in rules if rule is not None]

    def run_layers(self, x: Tensor, inputs: StackInputs, cache: Cache | None = None) -> Tensor:
        """One block after the other, then the final norm: x (B, T, E) -> (B, T, E), or of several
        streams (B, T, streams · E).
        """
        layers = self.layers(inputs, inputs.mask.count(x))
        x = self.to_streams(x)
        caches: Sequence[LayerCache | None] = [None] * len(self.block_of_layer)
        if cache is not None:
            cache.move_keys()
            caches = cache.layers
        for block, layer_inputs, state, layer_cache in zip(
            self.block_of_layer, layers, self.states, caches, strict=True
        ):
            x = self.run_block(self.blocks[block], x, layer_inputs, layer_cache)
            x = self.leave(state, x, layer_inputs)
        return self.final_norm(x)

    def to_streams(self, x: Tensor) -> Tensor:
        """x in each of the streams (B, T, streams · E)."""
        return x if self.streams == 1 else x.repeat(1, 1, self.streams)

    def rows(self, x: Tensor, inputs: LayerInputs) -> Tensor:
        """All states that the first layer reads: x (B, T, E), and those of further positions that a
        variant adds to the tokens.
        """
        return x

    def leave(self, state: nn.Module, x: Tensor, inputs: LayerInputs) -> Tensor:
        """The output x of a layer, passed through its hook point."""
        out: Tensor = state(x)
        return out

    def is_watched(self) -> bool:
        """Whether some hook point is: it then sees all tokens of a layer at once."""
        return any(getattr(module, "watched", False) for module in all_modules(self))

    def new_cache(self, kind: str, capacity: int, rollback: int) -> Cache:
        """An empty cache; see `Transformer.new_cache`."""
        attention = part_of(AttentionPart, self.config)
        factories = (partial(KEYS[kind], window, capacity, rollback) for window in self.windows)
        return Cache(attention.new_keys(factory) for factory in factories)


def all_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module by name, as `named_parameters()` gives them, in a fifth of the
    time.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    _add_parameters(module, "", found, seen)
    return found


def _add_parameters(
    module: nn.Module, prefix: str, found: dict[str, nn.Parameter], seen: set[int]
) -> None:
    """Add those that have no name yet. seen: their ids."""
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            found[prefix + name] = parameter
    for name, child in module._modules.items():
        if child is not None:
            _add_parameters(child, f"{prefix}{name}.", found, seen)


def _new_blocks(
    part: BlockPart, config: CoreConfig, memory_width: int | None, count: int
) -> Iterator[nn.Module]:
    """The blocks of a stack."""
    built: dict[Hashable, nn.Module] = {}
    for layer in range(count):
        kind = part.kind_of_layer(config, layer)
        if kind in built:
            yield copy_of(built[kind])
        else:
            built[kind] = part.new(config, layer, memory_width)
            yield built[kind]


def new_stack(config: CoreConfig, side: Side, *, crosses: bool = False) -> Stack:
    """A stack of the class that its parts need."""
    classes = (part.new_stack(config) for part in parts(config))
    kind = next((each for each in classes if each is not None), Stack)
    return kind(config, side, crosses=crosses)


def all_modules(module: nn.Module) -> list[nn.Module]:
    """All modules in a module, as `modules()` gives them, in a fifth of the time: shared ones
    repeatedly, and without their names.
    """
    found: list[nn.Module] = [module]
    for each in found:
        found.extend(inner for inner in each._modules.values() if inner is not None)
    return found
