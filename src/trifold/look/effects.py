"""The effect of edits over many lines: loss and accuracy of a model, and BLEU, with and without
them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.look.corpus import split_line
from trifold.look.session import Answer, Edits, Session
from trifold.nn.hooks import hooked
from trifold.pipeline import Pipeline
from trifold.predict.trace import Edit, Function, edited, run_with
from trifold.scores.bleu import bleu

MAX_LINES = 200  # of a request of the page
HEADS = "sublayer.heads"  # end of the name of a hook point


def effect_over_lines(
    pipeline: Pipeline,
    lines: Iterable[str],
    edits: Edits,
    on_done: Callable[[int], None] = lambda _: None,
) -> Answer:
    """The numbers of lines and labels; loss (nats per label) and accuracy (share of labels that are
    the best prediction), each without and with edits. on_done: called with a number of lines.

    A line is a text, or a text, a tab and the target. Raises DataError if no line has labels.
    """
    count = 0
    labels = 0
    loss = [0.0, 0.0]
    right = [0, 0]
    for line in filter(str.strip, lines):
        trace = run_with(pipeline, *split_line(line))
        has_label = trace.labels >= 0
        count += 1
        labels += int(has_label.sum())
        for n, traced in enumerate((trace, trace.patched(edits))):
            predicted = traced.logits.argmax(-1).cpu().reshape(-1)
            loss[n] += float(traced.loss.double().nansum())
            right[n] += int((predicted == trace.labels)[has_label].sum())
        on_done(1)
    if not labels:
        raise DataError(f"{count} lines have no labels; write text, a tab and the target on each")
    return {
        "lines": count,
        "labels": labels,
        "loss": [x / labels for x in loss],
        "accuracy": [x / labels for x in right],
    }


def effect_on_bleu(pipeline: Pipeline, lines: Iterable[str], edits: Edits) -> list[float] | None:
    """BLEU of the outputs without and with edits of heads; None without targets, or with other
    edits.

    A search computes one position at a time, so only `zero` and `scale` of whole heads have a
    meaning in it.
    """
    pairs = [pair for pair in map(split_line, lines) if pair[1] is not None]
    generates = pipeline.config.shape == "encoder-decoder" and pipeline.tokenizer is not None
    if not pairs or not generates or not all(map(_scales_whole_heads, edits)):
        return None
    texts, targets = zip(*pairs, strict=True)
    before = pipeline.generate(texts)
    with scaled_heads(pipeline, edits):
        after = pipeline.generate(texts)
    return [bleu(outputs, targets).value for outputs in (before, after)]


def _scales_whole_heads(edit: Edit) -> bool:
    if not str(edit.get("name")).endswith(HEADS) or edit.get("positions") is not None:
        return False
    return edit.get("op") in ("zero", "scale")


@contextmanager
def scaled_heads(pipeline: Pipeline, edits: Edits) -> Iterator[None]:
    """Edit the outputs of heads, with `zero` or `scale`, in every forward pass, also of a
    search.
    """
    functions: dict[str, Function] = {}
    for edit in edits:
        if not edit["name"].endswith(HEADS):
            raise UsageError(f"{edit['name']}: edit the hook point `heads` of an attention")
        before = functions.get(edit["name"], torch.clone)
        functions[edit["name"]] = partial(edited, edit, edit.get("value", 1.0), before)

    def scale(name: str, x: Tensor) -> Tensor | None:
        if name not in functions:
            return None
        # `edited` expects the heads first: (B, H, T, D) -> (H, T, D, B) and back.
        return functions[name](x.movedim(0, -1)).movedim(-1, 0)

    with hooked(pipeline.model, scale, HEADS):
        yield


def lines_effect(session: Session, lines: str, edits: Edits) -> Answer:
    """See `effect_over_lines`, and `bleu`: without and with edits, or None."""
    rows = [line for line in lines.split("\n") if line.strip()]
    if len(rows) > MAX_LINES:
        raise UsageError(f"{len(rows):,} lines; the page reads at most {MAX_LINES}")
    effect = effect_over_lines(session.pipeline, rows, edits)
    return {**effect, "bleu": effect_on_bleu(session.pipeline, rows, edits)}
