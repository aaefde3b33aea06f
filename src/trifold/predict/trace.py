"""Traces: every named activation of one text, its gradients, and what changes when activations are
edited.

Tensors have no batch axis: T queries, S keys, H heads, D head size, E model width, V vocabulary, C
classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.costs import Workload, check_request
from trifold.errors import DataError, UsageError, join_or
from trifold.generate.decoding import eval_mode, refuse_non_finite
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import MULTI, REGRESSION
from trifold.nn.heads import NEEDS_POSITIONS
from trifold.nn.hooks import hook_points, hooked
from trifold.predict.classify import ANSWERS, activate
from trifold.predict.trace_example import (
    Example,
    TracedPipeline,
    codec_of,
    name_queries,
    read_example,
)
from trifold.settings import nearest

Function = Callable[[Tensor], Tensor]
Edit = Mapping[str, Any]
"""name: a hook point. op: zero, mean (over positions), scale (by `value`) or copy (from the text
`from`). heads and positions: the indices to change, from 0; default: all.
"""
EDIT_KEYS = ("name", "heads", "positions", "op", "value", "from")

# The classes of heads whose names are not those of the model's labels.
CLASSES = {"next-sentence": [*ANSWERS.values()], "span": ["start", "end"]}

NO_GRADIENTS = "the trace has no gradients; use trace(…, gradients=True)"
NO_HEAD = "this model has no head with logits; its activations can be traced"


def traced_head(config: ModelConfig) -> str | None:
    """The head whose logits are traced; None if a model has no head with logits."""
    for name in config.chosen_heads:
        if name != "pooler" and name not in NEEDS_POSITIONS:
            return name
    return None


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
        model = pipeline.model
        self.pipeline = pipeline
        self.example = example
        self.hooks = hooks
        self.labels = example.labels
        self.side = "encoder" if model.decoder is None else "decoder"
        self.head = traced_head(pipeline.config)
        self.masks = self._mask_positions()
        self._logits: Tensor | None = None
        _check_hook_names(model, hooks)
        source, target = example.lengths(pipeline.config)
        check_activations(model, source, target, has_gradients=gradients)
        record = partial(self._record, with_gradients=gradients)
        with torch.set_grad_enabled(gradients), eval_mode(model), hooked(model, record):
            try:
                hidden = model(example.inputs, example.decoder_inputs)
                if self.head is not None:
                    self._logits = self.apply_head(hidden[0])
            except ValueError as error:
                raise DataError(str(error)) from error
        self.names = list(self)
        if not hooks:
            refuse_non_finite(hidden)

    def _mask_positions(self) -> list[int]:
        """The positions of the masks that a masked language model fills."""
        if self.side != "encoder" or self.head != "lm":
            return []
        ids = self.example.ids.get("encoder", [])
        return [n for n, token in enumerate(ids) if token == self.pipeline.reader.mask_id]

    def _record(self, name: str, x: Tensor, *, with_gradients: bool) -> Tensor:
        """Store the tensor x (1, …) of a hook point, or what the function for it returns; -> the
        stored tensor (1, …). Raises UsageError if the function returns another shape.
        """
        before = x[0]
        after = before
        if name in self.hooks:
            returned = self.hooks[name](x[0])
            if returned is not None:
                after = returned
        if not isinstance(after, Tensor) or after.shape != before.shape:
            raise UsageError(
                f"{name}: a hook returns a tensor of shape {tuple(before.shape)}, or None"
            )
        if with_gradients and name.endswith("embeddings.output"):
            after = after.detach().requires_grad_()
        self[name] = after
        return after[None]

    def __missing__(self, name: str) -> Tensor:
        raise KeyError(f"{name}: no such hook point{nearest(name, self.names, 'hook points')}")

    @cached_property
    def tokens(self) -> dict[str, list[str]]:
        """The tokens of "encoder" and "decoder"; those of an image are its class token and its
        patches.
        """
        if not self.example.ids:
            patches = [f"patch {n + 1}" for n in range(self.pipeline.config.n_patches)]
            return {"encoder": ["[CLS]", *patches]}
        return {
            side: codec_of(self.pipeline, side).pieces(ids)
            for side, ids in self.example.ids.items()
        }

    def label_names(self, ids: Sequence[int]) -> list[str]:
        """The names of predicted ids: tokens or classes."""
        if self.head in CLASSES:
            return [CLASSES[self.head][number] for number in ids]
        if self.head != "lm":
            return [self.pipeline.config.labels[number] for number in ids]
        return codec_of(self.pipeline, self.side).pieces(ids)

    @cached_property
    def queries(self) -> dict[str, list[str]]:
        """The names of the rows of each kind of attention: tokens; of "cross", see
        `name_queries`.
        """
        if len(self.tokens) == 1:
            return self.tokens
        written: list[str] = []
        if self.head == "lm":
            written = self.label_names(self.labels.tolist())
        return {**self.tokens, "cross": name_queries(self.tokens["decoder"], written)}

    def __repr__(self) -> str:
        """A line for each hook point with its shape; of layers only the first one."""
        kinds = dict[str, str]()
        for name, tensor in self.items():
            line = f"  {name} {tuple(tensor.shape)}"
            kinds.setdefault(re.sub(r"\d+", "", name), line)
        count = f"<Trace of {len(self)} hook points; of layers the first one is shown"
        return "\n".join([count, *kinds.values()]) + ">"

    @property
    def logits(self) -> Tensor:
        """(T, V) of a language model, (C,) of a classifier. Raises UsageError if the model has no
        head.
        """
        if self._logits is None:
            raise UsageError(NO_HEAD)
        return self._logits

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
        model = self.pipeline.model
        stack = getattr(model, self.side)
        with torch.no_grad(), eval_mode(model):
            if layer:
                state = self[f"{self.side}.states.{layer - 1}"][None]
            else:
                state = stack.to_streams(self[f"{self.side}_embeddings.output"][None])
            return self.apply_head(model.projected(stack.final_norm(state))[0])

    def lens(self, top: int = 5) -> tuple[Tensor, Tensor]:
        """Probabilities and ids of the `top` predictions after each layer, the embeddings first: (L
        + 1, T, top).
        """
        check_count("top", top)
        layers = len(getattr(self.pipeline.model, self.side).block_of_layer)
        best = [self._best(self.layer_logits(layer), top) for layer in range(layers + 1)]
        values = torch.stack([probabilities for probabilities, _ in best])
        return values, torch.stack([ids for _, ids in best])

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
        if self.head == "span":
            return logits.softmax(-2)
        return logits.softmax(-1)

    def _best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, ids = self.probabilities(logits).topk(min(count, logits.shape[-1]))
        return values, ids

    def apply_head(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states (T, E). Raises UsageError if the model has no head."""
        if self.head is None:
            raise UsageError(NO_HEAD)
        model = self.pipeline.model
        outputs = model.apply_heads(hidden[None], self.example.inputs, [self.head])
        return outputs[self.head][0]

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Hook point -> gradient of the sum of `loss`; without labels, of the best logit of the
        default position.
        """
        return self._gradients(self._output, self.names)

    @property
    def has_labels(self) -> bool:
        """Whether what is to be predicted is known."""
        return bool((self.labels >= 0).any())

    @property
    def _output(self) -> Tensor:
        """What `gradients` are the gradients of."""
        return self.loss.nansum() if self.has_labels else self._logit(None, None)

    def gradients_of(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of some parameters, of what `gradients` are those of; 0 for unused ones.
        Raises UsageError for a trace without gradients.
        """
        output = self._output
        if not output.requires_grad:
            raise UsageError(NO_GRADIENTS)
        found = torch.autograd.grad(output, parameters, retain_graph=True, materialize_grads=True)
        return list(found)

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
        """A logit of a position; see `gradient_x_input` for the defaults."""
        if position is None:
            position = self.masks[0] if self.masks else -1
        position = check_index("position", position, len(self.labels))
        logits = self.logits
        if logits.dim() > 1:
            logits = logits[position]
        if token is None:
            return logits[logits.argmax()]
        return logits[check_index("token", token, len(logits))]

    def _gradients(self, output: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        if not output.requires_grad:
            raise UsageError(NO_GRADIENTS)
        tensors = [self[name] for name in names]
        gradients = torch.autograd.grad(output, tensors, retain_graph=True, materialize_grads=True)
        return dict(zip(names, gradients, strict=True))

    def patched(self, edits: Sequence[Edit]) -> Trace:
        """The trace of the same example with edited activations.

        Raises UsageError for an edit that does not fit its hook point, DataError for texts of
        different lengths.
        """
        functions = dict(self.hooks)
        for edit in edits:
            for key in edit:
                _require(key, EDIT_KEYS, "key of an edit")
            operation = str(edit.get("op"))
            if operation not in OPERATIONS:
                raise UsageError(f"op {operation!r:.40} is not known; use {join_or([*OPERATIONS])}")
            name = str(edit.get("name"))
            before = functions.get(name, torch.clone)
            functions[name] = partial(edited, edit, self._operand(edit), before)
        return Trace(self.pipeline, self.example, functions)

    def _operand(self, edit: Edit) -> Any:
        """The tensor that an edit copies, or the factor by which it scales."""
        if edit["op"] != "copy":
            return edit.get("value", 1.0)
        name = str(edit.get("name"))
        if not isinstance(edit.get("from"), str):
            raise UsageError(f"{name}: copy needs `from`, the text to copy from")
        other = self.of(edit["from"])
        _require(name, list(other), "hook point")
        return other[name]

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


def check_activations(
    model: Transformer, source: int, target: int, *, has_gradients: bool = False
) -> None:
    """Raise NotEnoughMemoryError if all activations of a text do not fit into memory; source and
    target: the tokens that the encoder and the decoder read, 0 without one.
    """
    scored = 1
    if traced_head(model.config) == "lm":
        scored = target or source
    work = Workload(1, source, target, scored=scored, is_watched=True, has_gradients=has_gradients)
    tokens = " and ".join(f"{length:,}" for length in (source, target) if length)
    check_request(model, work, f"the activations of {tokens} tokens", "shorten the text")


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
    """before(x) with the chosen heads and positions changed; scores of -inf stay.

    x: (H, T, …) of heads, or (T, …).
    """
    x = before(x)
    name = edit["name"]
    new = OPERATIONS[edit["op"]](x, value)
    axes = ("heads", "positions")[-(x.dim() - 1) :]
    if edit.get("heads") is not None and "heads" not in axes:
        raise UsageError(
            f"{name} has no heads; edit the hook point `heads` of its attention, or leave heads out"
        )
    chosen = [_indices(edit, axis, size) for axis, size in zip(axes, x.shape, strict=False)]
    for axis, indices, size, available in zip(axes, chosen, x.shape, new.shape, strict=False):
        from_zero = [check_index(f"{name}: {axis}", index, size) for index in indices]
        is_whole = edit.get(axis) is None
        fits = max(from_zero, default=0) < available and new.shape[-1] == x.shape[-1]
        if not fits or (is_whole and size != available):
            raise DataError(
                f"{name}: the texts have {size} and {available} tokens; copy positions that "
                "both have"
            )
    ranges = [torch.tensor([*indices], device=x.device) for indices in chosen]
    grid = torch.meshgrid(*ranges, indexing="ij")
    out = x.clone()
    out[grid] = torch.where(x[grid] == -math.inf, x[grid], new[grid])
    return out


def _indices(edit: Edit, axis: str, size: int) -> Sequence[int]:
    """The indices that an edit changes on an axis, "heads" or "positions"; default: all."""
    indices: Sequence[int] | None = edit.get(axis)
    return range(size) if indices is None else indices


def check_index(name: str, index: int, size: int) -> int:
    """The index from 0. Raises UsageError if there are not that many."""
    if not -size <= index < size:
        raise UsageError(f"{name} {index}: give a number from 0 to {size - 1}")
    return index % size


def check_count(name: str, count: int) -> None:
    """Raises UsageError unless the count is at least 1."""
    if count < 1:
        raise UsageError(f"{name} {count}: give a number from 1")


def _check_hook_names(model: Transformer, names: Iterable[str]) -> None:
    """Raise UsageError for a name that is not a hook point of the model."""
    known = [point for _, _, points in hook_points(model) for point in points]
    for name in names:
        _require(name, known, "hook point")


def _require(name: str, known: Sequence[str], what: str) -> None:
    """Raise UsageError, with the nearest known name, for one that is not known."""
    if name not in known:
        raise UsageError(f"{name}: no such {what}{nearest(name, list(known), f'{what}s')}")
