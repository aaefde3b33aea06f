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
from trifold.predict.trace import Function, edited, run_with
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
        count = count + 1
        labels += int((known := trace.labels >= 0).sum())
        for which, each in enumerate((trace, trace.patched(edits))):
            loss[which] += float(each.loss.double().nansum())
            right[which] += int(
                (each.logits.argmax(-1).cpu().reshape(-1) == trace.labels)[known].sum()
            )
        on_done(1)
    if not labels:
        raise DataError(f"{count} lines have no labels; write text, a tab and the target on each")
    means = {
        name: [x / labels for x in sums] for name, sums in (("loss", loss), ("accuracy", right))
    }
    return {"lines": count, "labels": labels, **means}


def effect_on_bleu(pipeline: Pipeline, lines: Iterable[str], edits: Edits) -> list[float] | None:
    """BLEU of the outputs without and with edits of heads; None without targets, or with other
    edits.

    A search computes one position at a time, so only `zero` and `scale` of whole heads have a
    meaning in it.
    """
    pairs = [pair for pair in map(split_line, lines) if pair[1] is not None]
    whole = all(
        str(each.get("name")).endswith(HEADS) and each.get("positions") is None for each in edits
    )
    fits = whole and all(each["op"] in ("zero", "scale") for each in edits)
    if (
        not pairs
        or not fits
        or pipeline.config.shape != "encoder-decoder"
        or pipeline.tokenizer is None
    ):
        return None
    texts, targets = zip(*pairs, strict=True)
    before = pipeline.generate(texts)
    with scaled_heads(pipeline, edits):
        after = pipeline.generate(texts)
    return [bleu(outputs, targets).value for outputs in (before, after)]


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
        return functions[name](x.movedim(0, -1)).movedim(-1, 0) if name in functions else None

    with hooked(pipeline.model, scale, HEADS):
        yield


def lines_effect(session: Session, lines: str, edits: Edits) -> Answer:
    """See `effect_over_lines`, and `bleu`: without and with edits, or None."""
    rows = [line for line in lines.split("\n") if line.strip()]
    if len(rows) > MAX_LINES:
        raise UsageError(f"{len(rows):,} lines; the page reads at most {MAX_LINES}")
    found = effect_over_lines(session.pipeline, rows, edits)
    return {**found, "bleu": effect_on_bleu(session.pipeline, rows, edits)}
