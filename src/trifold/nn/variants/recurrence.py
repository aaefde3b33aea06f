"""Segment recurrence of a decoder                (Dai et al. 2019, "Transformer-XL", section 3.2)

A query attends to the keys of its own segment, and to some before it, which are constants:
gradients end at segments. Shapes: B batch, T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Request
from trifold.nn.masks import Mask, MaskPart, RealFirst, Rule
from trifold.nn.parts import RulePart, WalkPart, group
from trifold.nn.problems import Problems, excluded
from trifold.nn.stack import Stack
from trifold.settings import Settings


class Recurrence(Settings):
    """Attention to the own segment, and to keys before it as constants (Transformer-XL)."""

    size: int = Field(gt=0, description="tokens of a segment")
    reach: int = Field(ge=0, description="keys before the segment that its queries attend to")


@dataclass(frozen=True)
class Segment(Rule):
    """The real keys are divided into segments of `size`; a query of a causal mask attends to the
    keys of its own segment and to `before` keys before it.
    """

    blockwise = "near"

    size: int
    before: int

    can_be_lifted = True
    may_forbid_all = False

    @property
    def sentence(self) -> str:
        return f"segments of {self.size} tokens, and {self.before} tokens before each"

    @property
    def block(self) -> int:
        return self.size

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(part.positions)
        return others >= own // self.size * self.size - self.before

    def reach(self, causal: bool) -> tuple[int, int]:
        before = after = self.size + self.before
        if causal:
            after = 0
        return before, after


def run_segments(stack: Stack, x: Tensor, mask: Mask, recurrence: Recurrence) -> Tensor:
    """Segment after segment, x (B, T, E) -> (B, T, E): each layer also attends to its last inputs
    of the segments before, as constants. The values are those of the rule `Segment`.
    """
    padding_last = RealFirst.of(mask.keys)  # the padding of packed rows is there already
    rows = padding_last.move(mask.grid(x))
    attend = mask.real
    if attend is not None:
        attend = padding_last.move(attend)
    memories = [rows[:, :0]] * len(stack.block_of_layer)
    outs = []
    for start in range(0, rows.shape[1], recurrence.size):
        part = rows[:, start : start + recurrence.size]
        seen = memories[0].shape[1]
        stop = start + part.shape[1]
        keys = None if attend is None else attend[:, start - seen : stop]
        inputs = stack.with_positions(part, Request(Mask(keys, causal=True, offset=seen)))
        layers = stack.layers(inputs, part.shape[1])
        for layer, number in enumerate(stack.block_of_layer):
            context = torch.cat([memories[layer], part], 1)
            memories[layer] = context[:, max(0, context.shape[1] - recurrence.reach) :].detach()
            part = stack.run_block(stack.blocks[number].attend_to, part, context, layers[layer])
            part = stack.states[layer](part)
        outs.append(part)
    rows = stack.final_norm(torch.cat(outs, 1))
    return mask.flat(padding_last.undo(rows))


class SegmentPart(RulePart):
    """The rule of segments, with which the layers run one after the other."""

    key = "recurrence"
    needs: ClassVar = {"shape": ("decoder",), "positions": ("relative-sinusoidal", "none")}
    conflicts = "attention latent sliding_window residual experts"

    def of_stack(self, config: CoreConfig, mask: Mask, queries: int, device: torch.device) -> Mask:
        recurrence = _recurrence(config)
        assert recurrence is not None, "see `used`"
        return mask.with_rule(Segment(recurrence.size, recurrence.reach))

    def problems(self, config: CoreConfig) -> Problems:
        if config.kv_heads != config.n_heads:
            yield from excluded(config, self.key, "n_kv_heads")

    def keys_read(self, config: CoreConfig, layer: int, keys: int, side: str) -> int:
        recurrence = _recurrence(config)
        assert recurrence is not None, "see `used`"
        return min(keys, recurrence.size + recurrence.reach)

    def reach(self, config: CoreConfig, side: str) -> Iterator[str]:
        recurrence = _recurrence(config)
        assert recurrence is not None, "see `used`"
        yield f"segments of {recurrence.size:,} tokens and {recurrence.reach:,} before"

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        mask = Mask(causal=True, rules=(Segment(4, 2),))
        return {"segments of 4, and 2 tokens before": mask}


class RecurrencePart(WalkPart):
    """The walk of training, segment after segment."""

    key = "recurrence"
    is_recordable = False

    def run(self, stack: Stack, x: Tensor, request: Request) -> Tensor:
        recurrence = _recurrence(stack.config)
        assert recurrence is not None, "see `used`"
        return run_segments(stack, x, request.mask, recurrence)


def _recurrence(config: CoreConfig) -> Recurrence | None:
    return group(config, "recurrence", Recurrence)


PARTS = (SegmentPart(), RecurrencePart())
