"""A small model learns from a large one that has learnt the same task (Hinton et al. 2015).

rows -> batch      as the task that is wrapped has them
loss               what that task asks, and beside it, over all tokens that were read:
                   soft targets and the cosine of the last states   DistilBERT: Sanh et al. 2019, section 3
                   attention and value relations of one layer       MiniLM: Wang et al. 2020; 2021
scores             those of the task that is wrapped: how good the student is by itself

The teacher reads what the student reads, in the same order, without dropout, and learns nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from trifold.nn import Inputs, Transformer
from trifold.nn.attention import Attention
from trifold.nn.distillation import cosine_loss, looked, relation_losses, soft_target_loss
from trifold.nn.hooks import Entered, calls
from trifold.nn.stack import Stack
from trifold.objectives.causal import CausalSettings
from trifold.objectives.masked import MaskedSettings
from trifold.objectives.task import Batch, Evaluation, Examples, Looking, Task
from trifold.objectives.terms import Term
from trifold.settings import Settings

Answer = TypeVar("Answer")


class RelationWeights(Settings):
    """Weights of the divergences of one layer's relations from the teacher's; 0 leaves one out."""

    attention: float = Field(0.0, ge=0, description="queries with keys (MiniLM)")
    values: float = Field(0.0, ge=0, description="values with values (MiniLM, both versions)")
    queries: float = Field(0.0, ge=0, description="queries with queries (MiniLMv2)")
    keys: float = Field(0.0, ge=0, description="keys with keys (MiniLMv2)")
    heads: int | None = Field(
        None, gt=0, description="heads that they are cut into; the models' own, as many in both, unless given"
    )
    teacher_layer: int | None = Field(
        None, ge=0, description="layer of the teacher, from 0; its last unless given"
    )

    @property
    def weighed(self) -> dict[str, float]:
        """Those that count, by name."""
        every = {
            "attention": self.attention,
            "values": self.values,
            "queries": self.queries,
            "keys": self.keys,
        }
        return {name: weight for name, weight in every.items() if weight}


class DistillSettings(Settings):
    """Learning from a teacher. The weights of the three losses are those of DistilBERT's published run."""

    kind: Literal["distill"] = "distill"
    of: CausalSettings | MaskedSettings = Field(
        CausalSettings(), discriminator="kind", description="the task that both learn, told apart by its kind"
    )
    teacher: str = Field(description="the teacher: a run, a model's folder, or a hub id")
    temperature: float = Field(2.0, gt=0, description="logits are divided by it, of both")
    soft: float = Field(5.0, ge=0, description="weight of the divergence from the teacher's probabilities")
    hard: float = Field(2.0, ge=0, description="weight of the task's own loss")
    cosine: float = Field(1.0, ge=0, description="weight of the angle between the last states, of one width")
    relations: RelationWeights = Field(
        RelationWeights(), description="weights of the divergence of one layer's relations from the teacher's"
    )
    start: Literal["new", "spread"] | Annotated[tuple[int, ...], Field(strict=False)] = Field(
        "new",
        description="layers of the teacher, from 0, that the student's begin as: a list, or spread evenly",
    )

    @property
    def best_by(self) -> str:
        """The score of the task that is wrapped."""
        return self.of.best_by

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.soft or self.cosine or self.relations.weighed):
            raise ValueError("soft, cosine and all relations are 0: the teacher would be asked for nothing")
        return self


class Distill:
    """The task: the one that is wrapped, with the teacher's terms beside its own."""

    def __init__(self, settings: DistillSettings, task: Task, teacher: Transformer) -> None:
        self.settings, self.task = settings, task
        self.row_name, self.read_name, self.token_name = task.row_name, task.read_name, task.token_name
        self.packs = task.packs
        self._teacher = teacher.eval().requires_grad_(False)
        self._lock, self._own = threading.Lock(), threading.local()

    # as the task that is wrapped has it

    def examples(self, rows: Any, draw: int | None = None) -> Examples:
        """Rows as tokens."""
        return self.task.examples(rows, draw)

    def batch(
        self, examples: Any, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """The chosen examples."""
        return self.task.batch(examples, rows, width, draw=draw)

    def evaluate(self, model: Transformer, rows: Any, examples: Any, looking: Looking) -> Evaluation:
        """How good the student is by itself."""
        return self.task.evaluate(model, rows, examples, looking)

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        self.task.save(folder)

    # batch -> loss

    def counts(self, batch: Any) -> dict[str, int]:
        """What the task's terms are divided by; the teacher's are divided by the tokens that are read."""
        return self.task.counts(batch) | dict.fromkeys(self._weights, read_tokens(batch.inputs))

    def loss(self, model: Transformer, batch: Any) -> dict[str, Term]:
        """The task's terms, weighed, and the teacher's: soft, cosine, and a term a relation."""
        inner = [attention_of(model)] if self.settings.relations.weighed else []
        seen, terms = _watched([model, *inner], lambda: self.task.loss(model, batch))
        said = {
            name: Term(term.sum, term.count, term.weight * self.settings.hard, term.nll)
            for name, term in terms.items()
        }
        count, weights = read_tokens(batch.inputs), self._weights
        losses = self._compared(model, *seen)
        return said | {name: Term(total, count, weights[name]) for name, total in losses.items()}

    @property
    def _weights(self) -> dict[str, float]:
        """Of the teacher's terms, by name."""
        settings = self.settings
        every = {"soft": settings.soft, "cosine": settings.cosine}
        return {name: weight for name, weight in every.items() if weight} | settings.relations.weighed

    def _compared(self, model: Transformer, mine: Entered, *inner: Entered) -> dict[str, Tensor]:
        """Sums of the losses that look at the teacher, over the tokens that are read.

        mine: how the student was called; inner: the attention of it that is compared, if one is.
        """
        settings, names = self.settings, list(self.settings.relations.weighed)
        teacher = self._like(mine.out)
        watched = [attention_of(teacher, settings.relations.teacher_layer)] if names else []
        with torch.no_grad():
            (theirs, *their_inner), _ = _watched([teacher, *watched], lambda: teacher(*mine.args))
        states, wanted = _read(mine.out, mine.args[0]), _read(theirs.out, mine.args[0])
        losses: dict[str, Tensor] = {}
        if settings.soft:
            head, their_head = model.lm_head, teacher.lm_head
            assert head is not None and their_head is not None
            losses["soft"] = soft_target_loss(
                head.features(states), head.weight, head.bias, their_head, wanted, settings.temperature
            )
        if settings.cosine:
            losses["cosine"] = cosine_loss(states, wanted)
        if names:
            student, master = looked(attention_of(model), inner[0]), looked(watched[0], their_inner[0])
            losses |= relation_losses(student, master, names, settings.relations.heads)
        return losses

    def _like(self, states: Tensor) -> Transformer:
        """The teacher in the precision and at the place of the student, for this thread alone: its parts are watched
        while they run. Its weights are there once.
        """
        with self._lock:
            if not hasattr(self._own, "teacher"):
                shared = self._teacher.to(device=states.device, dtype=states.dtype)
                weights = (*shared.parameters(), *shared.buffers())
                self._own.teacher = deepcopy(shared, {id(tensor): tensor for tensor in weights})
        own: Transformer = self._own.teacher
        return own


def attention_of(model: Transformer, layer: int | None = None) -> Attention:
    """The self-attention of a layer of the last stack, of its last layer unless said."""
    stack = last_stack(model)
    block = stack.blocks[stack.order[-1 if layer is None else layer]]
    attention: Attention = block.self_attention.sublayer  # type: ignore[union-attr, assignment]
    return attention


def last_stack(model: Transformer) -> Stack:
    """The decoder, or the encoder where there is none."""
    stack = model.encoder if model.decoder is None else model.decoder
    assert stack is not None
    return stack


def _watched(parts: Sequence[nn.Module], run: Callable[[], Answer]) -> tuple[list[Entered], Answer]:
    """What `run` gives, and how it last called each of these parts."""
    with ExitStack() as everything:
        seen = [everything.enter_context(calls(part)) for part in parts]
        answer = run()
    return [each[-1] for each in seen], answer


def read_tokens(inputs: Inputs) -> int:
    """How many real tokens a batch reads."""
    if inputs.packing is not None:
        return inputs.packing.real
    return inputs.tokens.numel() if inputs.attend is None else int(inputs.attend.sum())


def _read(hidden: Tensor, inputs: Inputs) -> Tensor:
    """hidden (B, T, E), or packed (1, N, E) -> (tokens read, E)."""
    if inputs.packing is not None:
        return hidden[0, : inputs.packing.real]
    return hidden.flatten(0, 1) if inputs.attend is None else hidden[inputs.attend]
