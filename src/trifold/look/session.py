"""Requests about one text: functions of a session that return what a view shows, as plain values
and arrays.

Layers, heads and positions count from 0. Arrays are float32, or bool; a loss that is not known is
NaN.
"""

import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trifold.errors import NotEnoughMemoryError, UsageError
from trifold.look.attention import HOOKS, split_words
from trifold.look.walkthrough import walkthrough as walk
from trifold.nn.hooks import hook_points
from trifold.nn.parts import AttentionPart, part_of
from trifold.pipeline import Pipeline
from trifold.predict.trace import Edit, Trace, check_index, run_with
from trifold.predict.trace_example import codec_of

MAX_BYTES = 5 * 2**28  # of the activations of cached traces; the last trace is kept in any case
Answer = dict[str, Any]  # to a request of the page
Edits = Sequence[Edit]
Target = str | None
Index = int | None


class Session:
    """A model and the last traces of it. folder: of its run, or None. roles: what
    `look.roles.head_roles` returned, or None. Only one thread at a time runs the model.
    """

    def __init__(
        self, pipeline: Pipeline, folder: Path | None = None, roles: Answer | None = None
    ) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self.roles = roles
        self.lock = RLock()
        self._traces: dict[str, Trace] = {}

    @cached_property
    def containers(self) -> dict[str, Any]:
        """The module that contains each hook point, by the names of the point."""
        points = hook_points(self.pipeline.model)
        return {name: module for _, module, names in points for name in names}

    def trace(
        self, text: Any, target: Target = None, edits: Edits = (), *, gradients: bool = False
    ) -> Trace:
        """The trace of these arguments, from the cache if it has it."""
        name = text if isinstance(text, str) else id(text)
        key = json.dumps([name, target, list(edits), gradients])
        with self.lock:
            traced = self._traces.pop(key, None)
            if traced is None:
                traced = self._run(text, target, edits, gradients=gradients)
            self._traces[key] = traced  # now the newest, so the last that is removed
            self._remove_oldest()
            return traced

    def _run(self, text: Any, target: Target, edits: Edits, *, gradients: bool) -> Trace:
        """A new trace, without the traces in the cache if both do not fit into memory."""
        try:
            if edits:
                return self.trace(text, target).patched(edits)
            return run_with(self.pipeline, text, target, gradients=gradients)
        except NotEnoughMemoryError:
            if not self._traces:
                raise
        self._traces.clear()
        return self._run(text, target, edits, gradients=gradients)

    def _remove_oldest(self) -> None:
        """Remove the traces that were not used for the longest time, up to MAX_BYTES."""
        sizes = [sum(x.nbytes for x in traced.values()) for traced in self._traces.values()]
        while len(sizes) > 1 and sum(sizes) > MAX_BYTES:
            oldest = next(iter(self._traces))
            del self._traces[oldest]
            del sizes[0]


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    if x.dtype is not torch.bool:
        x = x.detach().float()
    return x.cpu().numpy()


def _best(traced: Trace, probabilities: Tensor, ids: Tensor) -> Answer:
    """The names and probabilities of predictions; the name of a number has its value."""
    names = np.array(traced.label_names(ids.flatten().tolist()), dtype=object).reshape(ids.shape)
    if traced.is_number:
        numbers = probabilities.detach().cpu().numpy()
        names = np.vectorize("{} = {:.4g}".format, otypes=[object])(names, numbers)
        probabilities = torch.ones_like(probabilities)
    return {"tokens": names.tolist(), "probabilities": _array(probabilities)}


def trace(session: Session, text: Any, target: Target = None, edits: Edits = ()) -> Answer:
    """tokens: of each side; queries: the names of the rows of each kind of attention; words: their
    texts, and the word of each token; labels: the tokens that the positions predict; loss: theirs;
    masks: positions of masks; output: the target or the model's own; top: see `lens`.
    """
    traced = session.trace(text, target, edits)
    pipeline = session.pipeline
    words = {
        side: split_words(codec_of(pipeline, side), ids)._asdict()
        for side, ids in traced.example.ids.items()
    }
    answer: Answer = {
        "side": traced.side,
        "tokens": traced.tokens,
        "queries": traced.queries,
        "words": words,
        "masks": traced.masks,
        "output": target,
    }
    if traced.head is None:
        return answer
    labels = traced.labels.tolist()
    if len(words) > 1 and traced.head == "lm":
        written = [label for label in labels if label >= 0]
        answer["output"] = pipeline.writer.decode([written])[0]
    return answer | {
        "labels": [traced.label_names([id_])[0] if id_ >= 0 else None for id_ in labels],
        "loss": _array(traced.loss),
        "top": _best(traced, *traced.top()),
    }


def lens(session: Session, text: Any, target: Target = None, top: int = 5) -> Answer:
    """The best predictions after each layer: tokens (L + 1, T, top) as lists, probabilities (L + 1,
    T, top).

    T is 1 for the class of a whole text or image.
    """
    traced = session.trace(text, target)
    values, ids = traced.lens(top)
    if values.dim() == 2:
        values = values[:, None]
        ids = ids[:, None]
    return {"masks": traced.masks, **_best(traced, values, ids)}


def effect(session: Session, text: Any, target: Target = None, edits: Edits = ()) -> Answer:
    """before and after: predictions and loss without and with edits; change: (T, top) of the logits
    of the predictions before; largest: (T,) change of a logit.
    """
    before = session.trace(text, target)
    after, change, _ = before.effect(edits)
    _, best_before = before.top()
    return {
        "before": _predictions(before),
        "after": _predictions(after),
        "change": _array(change.gather(-1, best_before)),
        "largest": _array(change.abs().amax(-1)),
    }


def _predictions(traced: Trace) -> Answer:
    return _best(traced, *traced.top()) | {"loss": _array(traced.loss)}


def gradients(
    session: Session, text: Any, target: Target = None, position: Index = None, token: Index = None
) -> Answer:
    """Gradient times input of each token of each side for a logit; see `Trace.gradient_x_input`."""
    traced = session.trace(text, target, gradients=True)
    scores = traced.gradient_x_input(position, token)
    return {"tokens": traced.tokens, "scores": {side: _array(x) for side, x in scores.items()}}


def walkthrough(
    session: Session, text: Any, target: Target = None, side: str | None = None, position: int = -1
) -> Answer:
    """steps: title, formula, operands {name: array}, result and hook point of each; see
    `look.walkthrough`.
    """
    steps: list[Answer] = []
    for step in walk(session.trace(text, target), side, position):
        operands = {name: _array(x) for name, x in step.operands.items()}
        steps.append({**vars(step), "operands": operands, "result": _array(step.result)})
    return {"steps": steps}


def neuron(
    session: Session, text: Any, kind: str, layer: int, head: int, query: int, target: Target = None
) -> Answer:
    """How a query weights the keys: softmax(cap(scale · q · k_j) + offset_j).

    scale: that of the model's config, or 1/√D. query (D,), keys (S, D), as they enter the product;
    products (S, D); scores (S,) before the soft cap, capped (S,) after it; allowed (S,): whether
    the mask leaves a key; offsets (S,): 0 where it does not; weights (S,). Rotary positions are in
    query and keys, other relative positions in the offsets.
    """
    traced = session.trace(text, target)
    # An unknown kind begins no hook point.
    point = HOOKS.get(kind, kind).format(layer).removesuffix("pattern")
    if f"{point}scores" not in traced:
        block = f"layer {layer + 1} · blocks.{layer}"
        raise UsageError(f"this model has no attention of kind {kind!r} in {block}")
    config = session.pipeline.config
    attention = part_of(AttentionPart, config)
    if not attention.has_scores:
        name = attention.label(config).replace(":", "")
        raise UsageError(f"{name} has no softmax of scores")
    heads = traced[f"{point}scores"]
    check_index("head", head, len(heads))
    check_index("query", query, heads.shape[1])
    masked = heads[head, query]
    scaled = traced[f"{point}queries"][head, query].float()
    keys = traced[f"{point}keys"]
    scale = float(session.containers[f"{point}queries"].scale)
    # The hook point has the query times scale · √D, because `ops.attend` divides by √D.
    q = scaled / (scale * math.sqrt(len(scaled)))
    k = keys[head * len(keys) // len(heads)].float()  # which several heads of queries may share
    cap = config.score_soft_cap
    scores = (q * k).sum(-1) * scale
    capped = scores
    if cap is not None:
        capped = cap * torch.tanh(scores / cap)
    allowed = masked > float("-inf")
    rows = {
        "query": q,
        "keys": k,
        "products": q * k,
        "scores": scores,
        "capped": capped,
        "offsets": torch.where(allowed, masked - capped, 0.0),
        "allowed": allowed,
        "weights": traced[f"{point}pattern"][head, query],
    }
    return {"scale": scale, **{name: _array(x) for name, x in rows.items()}}


def roles(session: Session) -> Answer:
    """The roles of heads over the corpus of the session; see `look.roles.head_roles`."""
    if session.roles is None:
        raise UsageError("roles are measured over a corpus: trifold look MODEL --roles CORPUS")
    return session.roles
