"""Compressive memory of a decoder        (Rae et al. 2020, "Compressive Transformer", section 3)

With segment recurrence, the states of the tokens that leave the memory are compressed, c into one,
and a query also attends to the last of these:

    compressed ← compressed, f(oldest states);   keys of a segment: compressed, memory, segment

f is the mean, the maximum, or a convolution of width and stride c, which learns to keep what
attention reads (algorithm 2):

    L = Σ over layers ‖attn(h, old) − attn(h, f(old))‖²,   attn(h, m) = softmax(h Q (m K)ᵀ/√d) m V

of the queries h of a segment and the states that leave while it is read. Everything but f is
constant in L, and f is constant in the loss of the task. L is a mean over the tokens of a batch and
over dimensions. With `loss: task`, the task trains f instead.

States of the memory are constants. Distances count compressed states as tokens, in the order of the
text. A cache holds the inputs of the stack, and every step computes all segments again.
Shapes: B batch, T tokens, E model width, H heads, Y value size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.attention import Attention
from trifold.nn.cache import Cache, GrowingKeys
from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Request
from trifold.nn.layers import scaled
from trifold.nn.masks import Mask, RealFirst
from trifold.nn.parts import AttentionPart, WalkPart, used_group
from trifold.nn.problems import Problems, defaults
from trifold.nn.stack import Stack
from trifold.settings import Conflict, Settings


class Compression(Settings):
    """States that leave the memory of a recurrent decoder are compressed."""

    rate: int = Field(gt=1, description="states that become one")
    memory: int = Field(gt=0, description="compressed states that a query reads")
    function: Literal["mean", "max", "convolution"] = Field(
        "convolution", description="of the states that become one"
    )
    loss: Literal["attention", "task"] = Field(
        "attention",
        description="causal: what trains the convolution: to keep what attention reads, or the "
        "task",
    )

    @property
    def reconstructs(self) -> bool:
        """Whether the function has a loss of its own."""
        return self.function == "convolution" and self.loss == "attention"


class CompressingAttention(Attention):
    """`compress` is f; its hook points are those of `Attention`."""

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        settings = _settings(config)
        self.rate = settings.rate
        self.function = settings.function
        self.convolution: nn.Conv1d | None = None
        if settings.function == "convolution":
            self.convolution = nn.Conv1d(config.d_model, config.d_model, self.rate, self.rate)

    def read(self, h: Tensor, states: Tensor) -> Tensor:
        """attn(h, m) of equation 1, without dropout: h (B, T, E), m (B, S, E) -> (B, H, T, Y)."""
        q = self.split(self.normed(self.q_norm, self.q_proj(h)))
        k, v = self.memory_keys(states, Mask())
        return ops.attend(scaled(q, self.query_scale), k, v, Mask())

    def compress(self, states: Tensor) -> Tensor:
        """(B, n·c, E) -> (B, n, E)."""
        if self.convolution is not None:
            compressed: Tensor = self.convolution(states.mT).mT
            return compressed
        groups = states.unflatten(1, (-1, self.rate))
        return groups.mean(2) if self.function == "mean" else groups.amax(2)


def reconstruction_error(
    residual: Any, h: Tensor, old: Tensor, new: Tensor, real: Tensor | None
) -> Tensor:
    """How much attention loses by compression: the squared difference of what queries h (B, T, E)
    read of old states (B, n·c, E) and of new ones (B, n, E), a sum over real queries (B, T), which
    are all if None, and a mean over dimensions. Its gradient reaches `new` only. residual: the
    sub-layer of the attention.
    """
    attention = residual.sublayer
    constant = new.detach().requires_grad_()
    with torch.enable_grad():
        queries = residual.enter(h.detach())
        difference = attention.read(queries, residual.enter(constant))
        difference = difference - attention.read(queries, residual.enter(old.detach()))
        errors = difference.square().mean((1, 3))
        if real is not None:
            errors = errors * real
        (gradient,) = torch.autograd.grad(errors.sum(), constant)
    return errors.sum().detach() + ((new - constant.detach()) * gradient).sum()


class LayerMemory:
    """What the segments of a layer read of those before: the last inputs (B, N, E), and the
    compressed ones (B, M, E).
    """

    def __init__(self, x: Tensor, reach: int, settings: Compression) -> None:
        self.recent = self.compressed = x.detach()[:, :0]
        self.reach = reach
        self.settings = settings

    def context(self, part: Tensor) -> Tensor:
        """All states that a segment reads, and its own."""
        return torch.cat([self.compressed, self.recent, part], 1)

    def add(self, part: Tensor, attention: Any) -> tuple[Tensor, Tensor]:
        """The states of a segment enter the memory; as many as leave it are compressed, except a
        rest that is too short, which stays. Returns those that left (B, n·c, E), and what they
        became (B, n, E).
        """
        recent = torch.cat([self.recent, part.detach()], 1)
        leaving = max(0, recent.shape[1] - self.reach)
        leaving -= leaving % self.settings.rate
        self.recent = recent[:, leaving:]
        old = recent[:, :leaving]
        if not leaving:
            return old, old
        new = attention.compress(old)
        constant = new.detach() if self.settings.reconstructs else new
        kept = torch.cat([self.compressed, constant], 1)
        self.compressed = kept[:, max(0, kept.shape[1] - self.settings.memory) :]
        return old, new


class CompressiveStack(Stack):
    """A stack that always reads segment after segment. errors: where L of each forward pass is
    recorded, if it is.
    """

    errors: list[Tensor] | None = None

    def new_cache(self, kind: str, capacity: int, rollback: int) -> Cache:
        """See `Stack.new_cache`. The cache holds the inputs only."""
        return Cache([GrowingKeys()])

    def run(self, x: Tensor, request: Request, cache: Cache | None) -> Tensor:
        """See `Stack.run`."""
        if cache is None:
            return self.run_segments(x, request.mask)
        count = x.shape[1]
        x = cache.layers[0].past.update(x[:, None], x[:, None, :, :0])[0][:, 0]
        return self.run_segments(x, replace(request.mask, offset=0))[:, -count:]

    def run_segments(self, x: Tensor, mask: Mask) -> Tensor:
        """x (B, T, E) -> (B, T, E). Padding is moved behind the real tokens."""
        size, reach = _segments(self.config)
        padding_last = RealFirst.of(mask.keys)
        rows = padding_last.move(mask.grid(x))
        settings = _settings(self.config)
        memories = [LayerMemory(rows, reach, settings) for _ in self.block_of_layer]
        errors = [rows.new_zeros(())]
        real = mask.real
        if real is not None:
            real = padding_last.move(real)
        outs = []
        for start in range(0, rows.shape[1], size):
            part = rows[:, start : start + size]
            seen = memories[0].context(part).shape[1] - part.shape[1]
            inputs = self.with_positions(part, Request(Mask(causal=True, offset=seen)))
            layers = self.layers(inputs, part.shape[1])
            for layer, number in enumerate(self.block_of_layer):
                block: Any = self.blocks[number]
                context = memories[layer].context(part)
                old, new = memories[layer].add(part, block.self_attention.sublayer)
                if self.errors is not None and old.shape[1]:
                    queries = None if real is None else real[:, start : start + size]
                    error = reconstruction_error(block.self_attention, part, old, new, queries)
                    errors.append(error)
                part = self.run_block(block.attend_to, part, context, layers[layer])
                part = self.states[layer](part)
            outs.append(part)
        if self.errors is not None:
            tokens = rows.shape[0] * rows.shape[1] if real is None else real.sum()
            self.errors.append(torch.stack(errors).sum() / tokens)
        return mask.flat(padding_last.undo(self.final_norm(torch.cat(outs, 1))))


class CompressivePart(AttentionPart):
    """Attention that compresses the states that leave its memory."""

    key = "compression"
    needs: ClassVar = {
        "shape": ("decoder",),
        "positions": ("relative-sinusoidal", "none"),
    }
    conflicts = "attention latent sliding_window sparse_blocks residual experts adaptive_span"

    def problems(self, config: CoreConfig) -> Problems:
        if getattr(config, "recurrence", None) is None:
            text = "compression needs recurrence, whose memory it compresses: set model.recurrence"
            yield Conflict(text, defaults(config, self.key))

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return CompressingAttention(config, layer)

    def new_stack(self, config: CoreConfig) -> type[Stack]:
        return CompressiveStack

    def penalty_weight(self, config: CoreConfig) -> float:
        return 1.0 if _settings(config).reconstructs else 0.0

    @contextmanager
    def penalty(self, model: nn.Module) -> Iterator[Callable[[], Tensor]]:
        """L."""
        decoder: Any = model.decoder
        decoder.errors = recorded = list[Tensor]()
        try:
            yield lambda: torch.stack(recorded).sum()
        finally:
            decoder.errors = None

    def terms(self, config: CoreConfig) -> list[str]:
        if _settings(config).function != "convolution":
            return super().terms(config)
        return [*super().terms(config), f"{_settings(config).rate}·E·E + E"]

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        """The memory, at most, and those of the segment."""
        return min(keys, near + _settings(config).memory)

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        """Every token is compressed once."""
        scores = super().score_elements(config, side, keys, read)
        if _settings(config).function != "convolution":
            return scores
        return scores + config.n_layers * config.d_model**2

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """The inputs of the stack."""
        return tokens * config.d_model

    def phrase(self, config: CoreConfig) -> str:
        return f"compressive memory, {_settings(config).rate} states into one"

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        settings = _settings(config)
        tokens = settings.memory * settings.rate
        yield f"{settings.memory:,} compressed states of {tokens:,} tokens before those"


class CompressiveWalk(WalkPart):
    """The walk of training, which is that of the stack."""

    key = "compression"
    is_recordable = False

    def run(self, stack: Any, x: Tensor, request: Request) -> Tensor:
        states: Tensor = stack.run_segments(x, request.mask)
        return states


def _settings(config: CoreConfig) -> Compression:
    return used_group(config, "compression", Compression)


def _segments(config: CoreConfig) -> tuple[int, int]:
    """The tokens of a segment, and of the memory before it."""
    recurrence: Any = getattr(config, "recurrence", None)
    assert recurrence is not None, "see `CompressivePart.problems`"
    return recurrence.size, recurrence.reach


PARTS = (CompressivePart(), CompressiveWalk())
