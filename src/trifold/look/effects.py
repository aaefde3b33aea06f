"""The effect of edits over many lines: loss and accuracy of a model with and without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trifold.errors import DataError
from trifold.look.trace import Edit, run_with
from trifold.pipeline import Pipeline


def effect_over_lines(pipeline: Pipeline, lines: Iterable[str], edits: Sequence[Edit]) -> dict[str, Any]:
    """The numbers of lines and labels; loss (nats per label) and accuracy (share of labels that are the best
    prediction), each without and with edits.

    A line is a text, or a text, a tab and the target. Raises DataError if no line has labels.
    """
    count, labels, loss, right = 0, 0, [0.0, 0.0], [0, 0]
    for line in filter(str.strip, lines):
        text, _, target = line.rstrip("\n").partition("\t")
        trace, count = run_with(pipeline, text, target or None), count + 1
        labels += int((known := trace.labels >= 0).sum())
        for which, each in enumerate((trace, trace.patched(edits))):
            loss[which] += float(each.loss.double().nansum())
            right[which] += int((each.logits.argmax(-1).cpu().reshape(-1) == trace.labels)[known].sum())
    if not labels:
        raise DataError(f"{count} lines have no labels; write text, a tab and the target on each")
    means = {name: [x / labels for x in sums] for name, sums in (("loss", loss), ("accuracy", right))}
    return {"lines": count, "labels": labels, **means}
