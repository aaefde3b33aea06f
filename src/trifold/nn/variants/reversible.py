"""Reversible blocks: the backward pass computes their inputs from their outputs (Gomez et al. 2017,
section 3).

A block is two steps (a, b) -> (b, a + f(b)): f is attention, then the feed-forward network. From
(b, c) follows a = c − f(b), so the forward pass stores the last two streams only, and the state of
the generator before each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trifold.nn.cache import LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.explain import Steps
from trifold.nn.gradients import first_order
from trifold.nn.inputs import Request
from trifold.nn.layers import Residual
from trifold.nn.parts import BlockPart, ScoresPart, WalkPart, no_cross_attention, part_of
from trifold.nn.problems import Problems, defaults
from trifold.nn.rng import thread_rng, use_thread_rng
from trifold.nn.stack import Block, Stack
from trifold.nn.walk import LayerInputs, in_order
from trifold.settings import Conflict

# A residual, and the arguments of its sub-layer besides the state.
Step = tuple[Residual, dict[str, Any]]


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

    def explain(self, steps: Steps, x: Tensor, inputs: LayerInputs, name: str) -> Tensor:
        """See `nn.explain`."""
        a, b = x.chunk(2, -1)
        for part in ("self_attention", "feed_forward"):
            residual = getattr(self, part)
            a, b = b, steps.residual(residual, b, inputs, f"{name}.{part}", onto=a)
        state = name.replace("blocks", "states")
        return steps.add("two streams", "[x; z]", torch.cat([a, b], -1), state, x=a, z=b)

    def steps(self, inputs: LayerInputs, cache: LayerCache | None = None) -> tuple[Step, Step]:
        """Attention and feed-forward network."""
        return (self.self_attention, inputs.self_attention(cache)), (self.feed_forward, {})


def run_reversibly(steps: list[Step], x: Tensor) -> Tensor:
    """One step after the other: x (B, T, 2·E) -> (B, T, 2·E). The arguments of the steps have no
    gradients.
    """
    parameters = {
        p: None for residual, _ in steps for p in residual.parameters() if p.requires_grad
    }
    return _Reversible.apply(steps, x, *parameters)  # type: ignore[no-untyped-call]


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: list[Step], x: Tensor, *parameters: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        ctx.steps = steps
        ctx.parameters = parameters
        ctx.states = []
        for residual, options in steps:
            ctx.states.append((thread_rng() or torch.default_generator).get_state())
            a, b = b, residual(b, onto=a, **options)
        ctx.save_for_backward(a, b)
        return torch.cat([a, b], -1)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (b, c), (d_b, d_c) = ctx.saved_tensors, gradients[0].chunk(2, -1)
        found = dict[Tensor, Tensor]()
        for (residual, options), state in zip(
            reversed(ctx.steps), reversed(ctx.states), strict=True
        ):
            own = [p for p in residual.parameters() if p.requires_grad]
            with torch.enable_grad(), use_thread_rng(torch.Generator().set_state(state)):
                b = b.detach().requires_grad_()
                change = residual(b, onto=torch.zeros_like(b), **options)
            d_change, *d_own = torch.autograd.grad(change, [b, *own], d_c, materialize_grads=True)
            for parameter, gradient in zip(own, d_own, strict=True):
                found[parameter] = found[parameter] + gradient if parameter in found else gradient
            b, c, d_b, d_c = c - change.detach(), b.detach(), d_c, d_b + d_change
        return None, torch.cat([d_b, d_c], -1), *(found[parameter] for parameter in ctx.parameters)


class ReversibleBlocksPart(BlockPart):
    """Reversible blocks, which pass on two streams."""

    key = "residual"
    value = "reversible"
    needs: ClassVar = {"norm_placement": ("pre",)}
    excludes = "first_norm residual_scale token_projection token_transform"
    streams = 2

    def new(self, config: CoreConfig, layer: int, memory_width: int | None) -> nn.Module:
        return ReversibleBlock(config, layer, memory_width=memory_width)

    def problems(self, config: CoreConfig) -> Problems:
        choice = self.label(config)
        yield from no_cross_attention(config, self)
        if "replaced" in config.chosen_heads:
            yield Conflict(f"{choice} excludes the head replaced", defaults(config, self.key))
        if (scores := part_of(ScoresPart, config)).learns_offsets:
            text = f"{choice} excludes positions: {scores.value}, learned offsets of scores"
            yield Conflict(text, defaults(config, "positions", self.key))

    def norms(self, config: CoreConfig, *, crosses: bool) -> int:
        return 2

    def saved(self, config: CoreConfig, attentions: int, norm: int, mask: int) -> int:
        return 2 * (1 + norm + mask)

    def phrase(self, config: CoreConfig) -> str:
        return "two streams in reversible blocks"

    def equations(self, config: CoreConfig) -> Iterator[str]:
        first = "x ← x + dropout(attention(norm(y)))"
        second = "y ← y + dropout(feed-forward(norm(x)))"
        yield f"every block:  {first}, {second}"


class ReversibleWalkPart(WalkPart):
    """The walk of training, which stores the last states only."""

    saves_layers = False

    key = "residual"
    value = "reversible"
    is_recordable = False

    def run(self, stack: Stack, x: Tensor, request: Request) -> Tensor:
        chosen = (stack.blocks[number] for number in stack.block_of_layer)
        # Blocks in shards, of another type, gather their parameters.
        blocks = [block for block in chosen if type(block) is ReversibleBlock]
        if len(blocks) < len(stack.block_of_layer):
            return in_order(stack, x, request)
        steps = list[Step]()
        layers = stack.layers(stack.inputs(x, request), request.mask.count(x))
        for block, own in zip(blocks, layers, strict=True):
            steps += block.steps(own._replace(memo={}))
        return stack.final_norm(run_reversibly(steps, stack.to_streams(x)))


PARTS = (ReversibleBlocksPart(), ReversibleWalkPart())
