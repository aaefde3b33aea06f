"""Traces: every named activation of one text, its gradients, and what changes when activations are
edited.

Tensors have no batch axis: T queries, S keys, H heads, D head size, E model width, V vocabulary, C
classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError, UsageError
from trifold.generate.decoding import eval_mode, refuse_non_finite
from trifold.nn.config import MULTI, REGRESSION
from trifold.nn.heads import NEEDS_POSITIONS
from trifold.nn.hooks import hook_points, hooked
from trifold.predict.classify import ANSWERS, activate
from trifold.predict.trace_example import (
    Example,
    TracedPipeline,
    name_queries,
    read_example,
)
from trifold.settings import nearest

Function = Callable[[Tensor], Tensor]
Edit = Mapping[str, Any]
"""name: a hook point. op: zero, mean (over positions), scale (by `value`) or copy (from the text
`from`). heads and positions: the indices to change, from 0; default: all.
"""

# The classes of heads whose names are not those of the model's labels.
CLASSES = {"next-sentence": [*ANSWERS.values()], "span": ["start", "end"]}


class Trace(dict[str, Tensor]):
    """A forward pass on one example: hook point -> tensor, in the order of computation.

    hooks: hook point -> function that returns another tensor, or None. With `gradients`, tensors
    are part of a graph. Raises UsageError for an unknown hook point. side: the last stack. head:
    the head whose logits are traced, or None. labels: (T,) the id that each position predicts, (1,)
    of a classifier, -1 if unknown. masks: positions of masks.
    """

    def __init__(
        self,
        pipeline: TracedPipeline,
        example: Example,
        hooks: Mapping[str, Function],
        gradients: bool = False,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.example = example
        self.hooks = hooks
        self.labels = example.labels
        self.side = "encoder" if pipeline.model.decoder is None else "decoder"
        heads = pipeline.config.chosen_heads
        self.head = next((name for name in heads if name not in ("pooler", *NEEDS_POSITIONS)), None)
        ids = example.ids.get("encoder", []) if self.side == "encoder" and self.head == "lm" else []
        self.masks = [place for place, token in enumerate(ids) if token == pipeline.reader.mask_id]
        known = [name for _, _, names in hook_points(pipeline.model) for name in names]
        for name in hooks:
            _require(name, known, "hook point")

        def hook(name: str, x: Tensor) -> Tensor:
            before = x[0]
            changed = hooks[name](x[0]) if name in hooks else None
            x = before if changed is None else changed
            if not isinstance(x, Tensor) or x.shape != before.shape:
                raise UsageError(
                    f"{name}: a hook returns a tensor of shape {tuple(before.shape)}, or None"
                )
            if gradients and name.endswith("embeddings.output"):
                x = x.detach().requires_grad_()
            self[name] = x
            return x[None]

        with (
            torch.set_grad_enabled(gradients),
            eval_mode(pipeline.model),
            hooked(pipeline.model, hook),
        ):
            try:
                hidden = pipeline.model(example.inputs, example.decoder_inputs)
                self._logits = None if self.head is None else self.apply_head(hidden[0])
            except ValueError as error:
                raise DataError(str(error)) from error
        self.names = list(self)
        if not hooks:
            refuse_non_finite(hidden)

    def __missing__(self, name: str) -> Tensor:
        raise KeyError(f"{name}: no such hook point{nearest(name, self.names, 'hook points')}")

    @cached_property
    def tokens(self) -> dict[str, list[str]]:
        """The tokens of "encoder" and "decoder"; those of an image are its class token and its
        patches.
        """
        if not self.example.ids:
            return {
                "encoder": [
                    "[CLS]",
                    *(f"patch {n + 1}" for n in range(self.pipeline.config.n_patches)),
                ]
            }
        codecs = {"encoder": self.pipeline.reader, "decoder": self.pipeline.writer}
        return {side: codecs[side].pieces(ids) for side, ids in self.example.ids.items()}

    def label_names(self, ids: Sequence[int]) -> list[str]:
        """The names of predicted ids: tokens or classes."""
        if self.head in CLASSES:
            return [CLASSES[self.head][number] for number in ids]
        if self.head != "lm":
            return [self.pipeline.config.labels[number] for number in ids]
        return (self.pipeline.writer if self.side == "decoder" else self.pipeline.reader).pieces(
            ids
        )

    @cached_property
    def queries(self) -> dict[str, list[str]]:
        """The names of the rows of each kind of attention: tokens; of "cross", see
        `name_queries`.
        """
        if len(self.tokens) == 1:
            return self.tokens
        written = self.label_names(self.labels.tolist()) if self.head == "lm" else []
        return {**self.tokens, "cross": name_queries(self.tokens["decoder"], written)}

    @property
    def logits(self) -> Tensor:
        """(T, V) of a language model, (C,) of a classifier. Raises UsageError if the model has no
        head.
        """
        return self.apply_head(torch.empty(0)) if self._logits is None else self._logits

    @property
    def loss(self) -> Tensor:
        """(T,) negative log-likelihood of the labels, NaN where there is none."""
        rows = self.logits.reshape(-1, self.logits.shape[-1])
        labels = self.labels.to(rows.device).expand(len(rows))
        if self.several:
            losses = -F.logsigmoid(rows.gather(-1, labels.clamp(min=0)[:, None]))[:, 0]
        else:
            losses = F.cross_entropy(rows, labels, reduction="none", ignore_index=-1)
        return losses.masked_fill(labels < 0, math.nan)

    def layer_logits(self, layer: int) -> Tensor:
        """The head's logits (T, V) or (C,) of the states after a layer (0: the embeddings) and the
        final norm.
        """
        name = f"{self.side}.states.{layer - 1}" if layer else f"{self.side}_embeddings.output"
        with torch.no_grad(), eval_mode(self.pipeline.model):
            model = self.pipeline.model
            stack = getattr(model, self.side)
            state = self[name][None]
            state = state if layer else stack.to_streams(state)
            return self.apply_head(model.projected(stack.final_norm(state))[0])

    def lens(self, top: int = 5) -> tuple[Tensor, Tensor]:
        """Probabilities and ids of the `top` predictions after each layer, the embeddings first: (L
        + 1, T, top).
        """
        layers = len(getattr(self.pipeline.model, self.side).block_of_layer)
        found = [self._best(self.layer_logits(layer), top) for layer in range(layers + 1)]
        values, ids = (torch.stack(parts) for parts in zip(*found, strict=True))
        return values, ids

    def top(self, count: int = 5) -> tuple[Tensor, Tensor]:
        """Probabilities and ids of the `count` best predictions at every position: (T, count); of a
        regression, its number.
        """
        return self._best(self.logits, count)

    @property
    def is_number(self) -> bool:
        """Whether the head predicts a number."""
        return self.head == "sequence" and self.pipeline.config.problem_type == REGRESSION

    @property
    def several(self) -> bool:
        """Whether each class has a probability of its own."""
        config = self.pipeline.config
        is_one = config.n_labels == 1 and not self.is_number
        return self.head == "sequence" and (config.problem_type == MULTI or is_one)

    def probabilities(self, logits: Tensor) -> Tensor:
        """What the model predicts with these logits, as `Pipeline.predict` does: of tokens or
        classes; of the positions of a start and an end; or the number of a regression.
        """
        if self.head == "sequence":
            return activate(logits, self.pipeline.config)
        return logits.softmax(-2 if self.head == "span" else -1)

    def _best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, ids = self.probabilities(logits).topk(min(count, logits.shape[-1]))
        return values, ids

    def apply_head(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states (T, E). Raises UsageError if the model has no head."""
        if self.head is None:
            raise UsageError("this model has no head with logits; its activations can be traced")
        return self.pipeline.model.apply_heads(hidden[None], self.example.inputs, [self.head])[
            self.head
        ][0]

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Hook point -> gradient of the sum of `loss`; without labels, of the best logit of the
        default position.
        """
        output = self.loss.nansum() if bool((self.labels >= 0).any()) else self._logit(None, None)
        return self._gradients(output, self.names)

    def gradient_x_input(
        self, position: int | None = None, token: int | None = None
    ) -> dict[str, Tensor]:
        """Side -> (T,) the sum over E of embedding times gradient of a logit.

        position: default: the first mask, or the last position. token: its id, or the class;
        default: the best.
        """
        names = {side: f"{side}_embeddings.output" for side in self.tokens}
        gradients = self._gradients(self._logit(position, token), list(names.values()))
        return {
            side: (self[name] * gradients[name]).sum(-1).detach() for side, name in names.items()
        }

    def _logit(self, position: int | None, token: int | None) -> Tensor:
        rows = self.logits
        default = (*self.masks, -1)[0]
        place = check_index("position", default if position is None else position, len(self.labels))
        row = rows if rows.dim() == 1 else rows[place]
        return row[row.argmax() if token is None else token]

    def _gradients(self, output: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        if not output.requires_grad:
            raise UsageError("the trace has no gradients; use trace(…, gradients=True)")
        tensors = [self[name] for name in names]
        found = torch.autograd.grad(output, tensors, retain_graph=True, materialize_grads=True)
        return dict(zip(names, found, strict=True))

    def patched(self, edits: Sequence[Edit]) -> Trace:
        """The trace of the same example with edited activations.

        Raises UsageError for an edit that does not fit its hook point, DataError for texts of
        different lengths.
        """
        functions = dict(self.hooks)
        for edit in edits:
            for key in edit:
                _require(
                    key, ("name", "heads", "positions", "op", "value", "from"), "key of an edit"
                )
            name = str(edit.get("name"))
            op = str(edit.get("op"))
            _require(op, tuple(OPERATIONS), "op")
            if op == "copy" and not isinstance(edit.get("from"), str):
                raise UsageError(f"{name}: copy needs `from`, the text to copy from")
            value = self.of(edit["from"])[name] if op == "copy" else edit.get("value", 1.0)
            functions[name] = partial(edited, edit, value, functions.get(name, torch.clone))
        return Trace(self.pipeline, self.example, functions)

    def effect(self, edits: Sequence[Edit]) -> tuple[Trace, Tensor, Tensor]:
        """The trace with edits, and the differences of its logits and its loss to those of this
        one.
        """
        after = self.patched(edits)
        return after, after.logits - self.logits, after.loss - self.loss

    def of(self, text: str) -> Trace:
        """The trace of another text, with the same target or output."""
        target = self.example.target
        if target is None and len(self.example.ids) > 1 and self.head == "lm":
            target = self.pipeline.writer.decode([self.labels.tolist()])[0]
        return run_with(self.pipeline, text, target)


def run_with(
    pipeline: TracedPipeline,
    text: Any,
    target: str | None = None,
    *,
    hooks: Mapping[str, Function] | None = None,
    gradients: bool = False,
) -> Trace:
    """See `Pipeline.run_with`, and for `gradients` `Pipeline.trace`."""
    return Trace(pipeline, read_example(pipeline, text, target), hooks or {}, gradients)


OPERATIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "zero": lambda x, value: torch.zeros_like(x),
    "mean": lambda x, value: (
        x.where(x > -math.inf, math.nan).nanmean(-2, keepdim=True).expand_as(x)
    ),
    "scale": lambda x, value: x * value,
    "copy": lambda x, value: value.to(x),
}


def edited(edit: Edit, value: Any, before: Function, x: Tensor) -> Tensor:
    """before(x) with the chosen heads and positions changed; scores of -inf stay."""
    x = before(x)
    name = edit["name"]
    new = OPERATIONS[edit["op"]](x, value)
    axes = ("heads", "positions")[-(x.dim() - 1) :]
    if edit.get("heads") is not None and "heads" not in axes:
        raise UsageError(
            f"{name} has no heads; edit the hook point `heads` of its attention, or leave heads out"
        )
    chosen = [
        range(n) if edit.get(key) is None else edit[key]
        for key, n in zip(axes, x.shape, strict=False)
    ]
    for key, indices, size, available in zip(axes, chosen, x.shape, new.shape, strict=False):
        indices = [check_index(f"{name}: {key}", index, size) for index in indices]
        whole = edit.get(key) is None and size != available
        if whole or max(indices, default=0) >= available or new.shape[-1] != x.shape[-1]:
            raise DataError(
                f"{name}: the texts have {size} and {available} tokens; copy positions that "
                "both have"
            )
    grid = torch.meshgrid(
        *(torch.tensor([*indices], device=x.device) for indices in chosen), indexing="ij"
    )
    out = x.clone()
    out[grid] = torch.where(x[grid] == -math.inf, x[grid], new[grid])
    return out


def check_index(name: str, index: int, size: int) -> int:
    """The index from 0. Raises UsageError if there are not that many."""
    if not -size <= index < size:
        raise UsageError(f"{name} {index}: give a number from 0 to {size - 1}")
    return index % size


def _require(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise UsageError(f"{name}: no such {what}{nearest(name, list(known), f'{what}s')}")
