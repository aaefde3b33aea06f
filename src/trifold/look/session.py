"""Requests about one text: functions of a session that return what a view shows, as plain values and arrays.

Layers, heads and positions count from 0. Arrays are float32, or bool; a loss that is not known is NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.errors import UsageError
from trifold.look.attention import HOOKS, split_words
from trifold.look.trace import Edit, Lens, Trace, run_with
from trifold.pipeline import Pipeline

MAX_BYTES = 2**29  # of the activations of cached traces; the last trace is kept in any case
Answer = dict[str, Any]


class Session:
    """A model and the last traces of it. Only one thread at a time runs the model."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.lock = pipeline, RLock()
        self._traces: dict[str, Trace] = {}

    def trace(
        self, text: Any, target: str | None = None, edits: Sequence[Edit] = (), *, gradients: bool = False
    ) -> Trace:
        """The trace of these arguments, from the cache if it has it."""
        key = json.dumps([text if isinstance(text, str) else id(text), target, list(edits), gradients])
        with self.lock:
            found = self._traces.pop(key, None)
            if found is None and edits:
                found = self.trace(text, target).patched(edits)
            elif found is None:
                found = run_with(self.pipeline, text, target, gradients=gradients)
            self._traces[key] = found
            while len(self._traces) > 1 and sum(each.nbytes for each in self._traces.values()) > MAX_BYTES:
                del self._traces[next(iter(self._traces))]
            return found


# --- requests --------------------------------------------------------------------------------------------


def trace(session: Session, text: Any, target: str | None = None, edits: Sequence[Edit] = ()) -> Answer:
    """tokens: of each side; words: their texts, and the word of each token; labels: the tokens that the positions
    predict; loss: theirs; masks: positions of masks; output: the target or the model's own; top: see `lens`.
    """
    found = session.trace(text, target, edits)
    ids, pipeline = found.example.ids, session.pipeline
    codecs = {side: pipeline.reader if side == "encoder" else pipeline.writer for side in ids}
    words = {side: split_words(codecs[side], row)._asdict() for side, row in ids.items()}
    known = [label for label in found.labels.tolist() if label >= 0]
    output = pipeline.writer.decode([known])[0] if found.side == "decoder" and "encoder" in ids else target
    answer: Answer = {"side": found.side, "tokens": found.tokens, "words": words, "output": output or ""}
    answer |= {"masks": found.masks(), "names": found.names}
    if found.head is None:
        return answer
    labels = [None if label < 0 else found.label_names([label])[0] for label in found.labels.tolist()]
    return answer | {"labels": labels, "loss": _array(found.loss), "top": _best(found, found.top())}


def lens(session: Session, text: Any, target: str | None = None, top: int = 5) -> Answer:
    """The best predictions after each layer: tokens (L + 1, T, top) as lists, probabilities (L + 1, T, top)."""
    found = session.trace(text, target)
    return {"masks": found.masks(), **_best(found, found.lens(top))}


def effect(
    session: Session, text: Any, target: str | None = None, edits: Sequence[Edit] = (), top: int = 5
) -> Answer:
    """before and after: predictions and loss without and with edits; change: (T, top) of the logits of those before."""
    before, after = session.trace(text, target), session.trace(text, target, edits)
    best = before.top(top)
    parts = {
        name: {**_best(each, each.top(top)), "loss": _array(each.loss)}
        for name, each in (("before", before), ("after", after))
    }
    change = (after.logits - before.logits).gather(-1, best.ids)
    largest = (after.logits - before.logits).abs().amax(-1)
    return {**parts, "change": _array(change), "largest": _array(largest)}


def gradients(
    session: Session,
    text: Any,
    target: str | None = None,
    position: int | None = None,
    token: int | None = None,
) -> Answer:
    """Gradient times input of each token of each side for a logit; see `Trace.gradient_x_input`."""
    found = session.trace(text, target, gradients=True)
    scores = found.gradient_x_input(position, token)
    return {"tokens": found.tokens, "scores": {side: _array(x) for side, x in scores.items()}}


def neuron(
    session: Session,
    text: Any,
    target: str | None = None,
    kind: str = "decoder",
    layer: int = 0,
    head: int = 0,
    query: int = 0,
    edits: Sequence[Edit] = (),
) -> Answer:
    """How a query weights the keys: softmax(cap(q · k_j / √D) + offset_j).

    query (D,), keys (S, D), as they enter the product; products (S, D); scores (S,) before offsets; allowed (S,): what
    the mask leaves; offsets (S,): 0 where it does not; weights (S,). Rotary positions are in query and keys, other
    relative positions in the offsets.
    """
    if kind not in HOOKS:
        raise UsageError(f"kind {kind!r} is not known; give one of {', '.join(HOOKS)}")
    found, point = session.trace(text, target, edits), HOOKS[kind].format(layer).removesuffix("pattern")
    if f"{point}scores" not in found:
        raise UsageError(f"this model has no {kind} attention in layer {layer}")
    scores = found[f"{point}scores"]
    for name, index, size in (("head", head, scores.shape[0]), ("query", query, scores.shape[1])):
        if not 0 <= index < size:
            raise UsageError(f"{name} {index}: give a number from 0 to {size - 1}")
    q, keys = found[f"{point}queries"][head, query].float(), found[f"{point}keys"].float()
    k = keys[head * len(keys) // len(scores)]
    products, cap = q * k, session.pipeline.config.score_soft_cap
    plain = products.sum(-1) / math.sqrt(len(q))
    capped = plain if cap is None else cap * torch.tanh(plain / cap)
    masked = scores[head, query].float()
    allowed = masked > float("-inf")
    offsets = torch.where(allowed, masked - capped, 0.0)
    weights = torch.where(allowed, capped + offsets, float("-inf")).softmax(-1)
    rows = {"query": q, "keys": k, "products": products, "scores": plain, "offsets": offsets}
    arrays = {name: _array(x) for name, x in (rows | {"weights": weights}).items()}
    return arrays | {"capped": _array(capped), "allowed": allowed.cpu().numpy(), "scale": len(q) ** -0.5}


def _best(found: Trace, best: Lens) -> Answer:
    """The tokens or classes and probabilities of predictions."""
    flat = found.label_names(best.ids.flatten().tolist())
    tokens = np.array(flat, dtype=object).reshape(best.ids.shape).tolist()
    return {"tokens": tokens, "probabilities": _array(best.probabilities)}


def _array(x: Tensor) -> NDArray[np.float32]:
    return x.float().cpu().numpy()
