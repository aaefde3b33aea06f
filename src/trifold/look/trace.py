"""Traces: every named activation of one text, its gradients, and what changes when activations are edited.

    trace = pipe.trace("A dog runs.", "Ein Hund rennt.")
    trace["decoder.blocks.0.cross_attention.sublayer.pattern"]                   # (H, T, S)
    trace.patched([{"name": "encoder.blocks.1.feed_forward.output", "op": "zero"}]).loss

Tensors have no batch axis: T queries, S keys, H heads, D head size, E model width, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError, UsageError
from trifold.generate.decoding import eval_mode, refuse_non_finite
from trifold.look.examples import Example, read_example
from trifold.nn.hooks import Kind, hook_points, hooked
from trifold.pipeline import Pipeline
from trifold.settings import nearest

Edit = Mapping[str, Any]
"""name: a hook point. op: zero, mean (over positions), scale (by `value`) or copy (from the text `from`). heads and
positions: the indices to change, from 0; default: all.
"""
Function = Callable[[Tensor], Tensor]


class Lens(NamedTuple):
    """The best tokens or classes after each layer, the embeddings first: (L + 1, T, top), or (L + 1, 1, top)."""

    probabilities: Tensor
    ids: Tensor


class Effect(NamedTuple):
    """The traces without and with edits; `logits` and `loss` are the differences, with minus without."""

    before: Trace
    after: Trace

    @property
    def logits(self) -> Tensor:
        return self.after.logits - self.before.logits

    @property
    def loss(self) -> Tensor:
        return self.after.loss - self.before.loss


class Trace(Mapping[str, Tensor]):
    """A forward pass on one example: hook point -> tensor, in the order of computation.

    hooks: hook point -> function that replaces its tensor. Raises UsageError for an unknown hook point.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        example: Example,
        hooks: Mapping[str, Function] | None = None,
        *,
        gradients: bool = False,
    ) -> None:
        self.pipeline, self.example = pipeline, example
        self._hooks, self._activations = dict(hooks or {}), dict[str, Tensor]()
        model = pipeline.model
        known = [name for _, _, names in hook_points(model) for name in names]
        for name in self._hooks:
            if name not in known:
                raise UsageError(f"{name}: no such hook point{nearest(name, known, 'hook points')}")

        def edit(name: str, x: Tensor) -> Tensor:
            return self._hooks[name](x[0])[None]

        def record(name: str, x: Tensor) -> Tensor:
            if gradients and name.endswith("embeddings.output"):
                x = x.detach().requires_grad_()
            self._activations[name] = x
            return x

        def is_edited(name: str, kind: Kind) -> bool:
            return name in self._hooks

        with ExitStack() as contexts:
            contexts.enter_context(torch.set_grad_enabled(gradients))
            for context in (eval_mode(model), hooked(model, edit, is_edited), hooked(model, record)):
                contexts.enter_context(context)
            try:
                self._hidden = model(example.inputs, example.decoder_inputs)
                self._logits = None if self.head is None else self._apply_head(self._hidden)
            except ValueError as error:
                raise DataError(str(error)) from error
        if not self._hooks:
            refuse_non_finite(self._hidden)

    # --- tensors -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._activations:
            raise KeyError(f"{name}: no such hook point{nearest(name, self.names, 'hook points')}")
        return self._activations[name][0].detach()

    def __iter__(self) -> Any:
        return iter(self._activations)

    def __len__(self) -> int:
        return len(self._activations)

    @property
    def names(self) -> list[str]:
        """The hook points that the example passed."""
        return list(self._activations)

    @property
    def side(self) -> str:
        """The stack whose states the head reads: "encoder" or "decoder"."""
        return "encoder" if self.pipeline.model.decoder is None else "decoder"

    @cached_property
    def tokens(self) -> dict[str, list[str]]:
        """The tokens of "encoder" and "decoder"; those of an image are its class token and its patches."""
        if not self.example.ids:
            patches = range(1, self.pipeline.config.n_patches + 1)
            return {"encoder": ["[CLS]", *(f"patch {n}" for n in patches)]}
        codecs = {"encoder": self.pipeline.reader, "decoder": self.pipeline.writer}
        return {side: codecs[side].pieces(ids) for side, ids in self.example.ids.items()}

    @property
    def head(self) -> str | None:
        """The head whose logits are traced, or None."""
        names = self.pipeline.config.chosen_heads
        return next((name for name in names if name not in ("pooler", "boundary")), None)

    @property
    def logits(self) -> Tensor:
        """(T, V) of a language model, (C,) of a classifier. Raises UsageError if the model has no head."""
        if self._logits is None:
            raise UsageError("this model has no head with logits; its activations can be traced")
        return self._logits[0].detach()

    @property
    def labels(self) -> Tensor:
        """(T,) the id that each position predicts, (1,) of a classifier; -1 where none is known."""
        return self.example.labels

    @cached_property
    def loss(self) -> Tensor:
        """(T,) negative log-likelihood of the labels, NaN where there is none."""
        return self._loss().detach()

    def _loss(self) -> Tensor:
        assert self._logits is not None
        rows = self._logits[0].reshape(-1, self._logits.shape[-1])
        labels = self.labels.to(rows.device)
        losses = F.cross_entropy(rows, labels, reduction="none", ignore_index=-1)
        return losses.masked_fill(labels < 0, float("nan"))

    def label_names(self, ids: Sequence[int]) -> list[str]:
        """The names of predicted ids: tokens or classes."""
        if self.head != "lm":
            return [self.pipeline.config.labels[number] for number in ids]
        return (self.pipeline.writer if self.side == "decoder" else self.pipeline.reader).pieces(ids)

    @property
    def nbytes(self) -> int:
        """The size of all activations."""
        return sum(x.nbytes for x in self._activations.values())

    # --- logit lens --------------------------------------------------------------------------------------

    def layer_logits(self, layer: int) -> Tensor:
        """The head's logits (T, V) or (C,) of the states after a layer (0: the embeddings) and the final norm; those of
        the last layer equal `logits`.
        """
        name = f"{self.side}.states.{layer - 1}" if layer else f"{self.side}_embeddings.output"
        with torch.no_grad(), eval_mode(self.pipeline.model):
            stack = getattr(self.pipeline.model, self.side)
            return self._apply_head(stack.final_norm(self._activations[name]))[0]

    def lens(self, top: int = 5) -> Lens:
        """The `top` predictions of every layer at every position."""
        layers = len(getattr(self.pipeline.model, self.side).order)
        found = [_top(self.layer_logits(layer), top) for layer in range(layers + 1)]
        return Lens(*(torch.stack(parts) for parts in zip(*found, strict=True)))

    def top(self, count: int = 5) -> Lens:
        """The `count` best predictions at every position: probabilities and ids, both (T, count)."""
        return Lens(*_top(self.logits, count))

    def _apply_head(self, hidden: Tensor) -> Tensor:
        if self.head is None:
            raise UsageError("this model has no head with logits; its activations can be traced")
        return self.pipeline.model.apply_heads(hidden, self.example.inputs, heads=[self.head])[self.head]

    # --- gradients ---------------------------------------------------------------------------------------

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Hook point -> gradient of the sum of `loss`; without labels, of the best logit of the default position."""
        has_labels = bool((self.labels >= 0).any())
        return self._gradients(self._loss().nansum() if has_labels else self._logit(None, None), self.names)

    def gradient_x_input(self, position: int | None = None, token: int | None = None) -> dict[str, Tensor]:
        """Side -> (T,) the sum over E of embedding times gradient of a logit.

        position: default: the first mask, or the last position. token: its id, or the class; default: the best.
        """
        names = {side: f"{side}_embeddings.output" for side in self.tokens}
        gradients = self._gradients(self._logit(position, token), list(names.values()))
        return {side: (self[name] * gradients[name]).sum(-1) for side, name in names.items()}

    def default_position(self) -> int:
        """The first mask, or the last position."""
        masks = self.masks()
        return masks[0] if masks else -1

    def masks(self) -> list[int]:
        """The positions of mask tokens in the text of a masked language model."""
        codec = self.pipeline.tokenizer
        ids = self.example.ids.get("encoder", []) if self.side == "encoder" and self.head == "lm" else []
        return [place for place, token in enumerate(ids) if codec is not None and token == codec.mask_id]

    def _logit(self, position: int | None, token: int | None) -> Tensor:
        rows = self._apply_head(self._hidden)[0]
        row = rows if rows.dim() == 1 else rows[self.default_position() if position is None else position]
        return row[row.argmax() if token is None else token]

    def _gradients(self, output: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        if not output.requires_grad:
            raise UsageError("the trace has no gradients; use trace(…, gradients=True)")
        tensors = [self._activations[name] for name in names]
        found = torch.autograd.grad(output, tensors, retain_graph=True, allow_unused=True)
        zeros = (
            torch.zeros_like(x) if gradient is None else gradient
            for x, gradient in zip(tensors, found, strict=True)
        )
        return {name: gradient[0] for name, gradient in zip(names, zeros, strict=True)}

    # --- edits -------------------------------------------------------------------------------------------

    def patched(self, edits: Sequence[Edit]) -> Trace:
        """The trace of the same example with edited activations.

        Raises UsageError for an edit that does not fit its hook point, DataError for texts of different lengths.
        """
        functions: dict[str, Function] = dict(self._hooks)
        for edit in edits:
            function, before = self._function(edit), functions.get(edit["name"])
            functions[edit["name"]] = function if before is None else _chain(before, function)
        return Trace(self.pipeline, self.example, functions)

    def effect(self, edits: Sequence[Edit]) -> Effect:
        """The change that the edits cause."""
        return Effect(self, self.patched(edits))

    def _function(self, edit: Edit) -> Function:
        known = ("name", "heads", "positions", "op", "value", "from")
        for key in edit:
            if key not in known:
                raise UsageError(f"{key}: no such key of an edit{nearest(key, list(known), 'keys')}")
        name, op = edit.get("name"), edit.get("op")
        if op not in OPERATIONS:
            raise UsageError(f"{name}: op is {op!r}; give one of {', '.join(OPERATIONS)}")
        value: Any = edit.get("value", 1.0)
        if op == "copy":
            if not isinstance(edit.get("from"), str):
                raise UsageError(f"{name}: copy needs `from`, the text to copy from")
            value = self.of(edit["from"])[str(name)]

        def apply(x: Tensor) -> Tensor:
            new = OPERATIONS[op](x, value)
            if new.shape != x.shape:
                new = _fit(str(name), new, x, edit.get("positions"))
            return torch.where(_chosen(str(name), x, edit) & (x != float("-inf")), new, x)

        return apply

    def of(self, text: str) -> Trace:
        """The trace of another text, with the same target or output."""
        target = self.example.target
        if target is None and self.side == "decoder" and "encoder" in self.example.ids:
            target = self.pipeline.writer.decode([self.labels.tolist()])[0]
        return run_with(self.pipeline, text, target)


# --- operations of edits ---------------------------------------------------------------------------------


def _mean(x: Tensor, value: Any) -> Tensor:
    return x.masked_fill(x == float("-inf"), float("nan")).nanmean(-2, keepdim=True).expand_as(x)


OPERATIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "zero": lambda x, value: torch.zeros_like(x),
    "mean": _mean,
    "scale": lambda x, value: x * value,
    "copy": lambda x, value: value.to(x),
}


def _chosen(name: str, x: Tensor, edit: Edit) -> Tensor:
    """Boolean (H, T, 1) or (T, 1): the heads and positions to change."""
    axes = ("heads", "positions")[-(x.dim() - 1) :]
    if edit.get("heads") is not None and "heads" not in axes:
        raise UsageError(
            f"{name} has no heads: leave heads out, or edit the hook point `heads` of its attention"
        )
    chosen = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    for axis, key in enumerate(axes):
        if (indices := edit.get(key)) is not None:
            size = x.shape[axis]
            if any(not 0 <= index < size for index in indices):
                raise UsageError(f"{name}: {key} {list(indices)}: give numbers from 0 to {size - 1}")
            here = torch.zeros(size, dtype=torch.bool, device=x.device)
            here[list(indices)] = True
            chosen &= here.view(-1, *[1] * (len(axes) - 1 - axis))
    return chosen[..., None]


def _fit(name: str, new: Tensor, x: Tensor, positions: Sequence[int] | None) -> Tensor:
    """A copy from a text of another length, in the shape of x; it is read at `positions` only."""
    shared = min(new.shape[-2], x.shape[-2])
    if positions is None or new.shape[-1] != x.shape[-1] or max(positions, default=0) >= shared:
        raise DataError(
            f"{name}: the texts have {x.shape[-2]} and {new.shape[-2]} tokens; copy from a text of the same length, "
            "or positions that both have, of a hook point without scores"
        )
    out = x.clone()
    out[..., :shared, :] = new[..., :shared, :]
    return out


def _chain(first: Function, second: Function) -> Function:
    return lambda x: second(first(x))


def _top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    best = logits.softmax(-1).topk(min(count, logits.shape[-1]))
    return best.values, best.indices


def run_with(
    pipeline: Pipeline,
    text: Any,
    target: str | None = None,
    *,
    hooks: Mapping[str, Function] | None = None,
    gradients: bool = False,
) -> Trace:
    """See `Pipeline.run_with`."""
    return Trace(pipeline, read_example(pipeline, text, target), hooks, gradients=gradients)
