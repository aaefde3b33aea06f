"""One token after the other: the likeliest, or one drawn."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from torch import Tensor

from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Ends, Hypothesis
from trifold.generate.live import Live
from trifold.generate.processors import Processor
from trifold.generate.samplers import Sampler
from trifold.generate.search.finished import Watch, divisor, refuse_nan


class Step(NamedTuple):
    """The sentences (n,) that just got one more token, and the tokens (n,); an end token may be among them."""

    sentences: Tensor
    tokens: Tensor


Steps = Generator[Step, None, list[Hypothesis]]
"""A search that can be watched while it writes; what it returns is one output a sentence, in their order."""


def drained(steps: Steps) -> list[Hypothesis]:
    """The outputs, without watching."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outputs: list[Hypothesis] = done.value
            return outputs


def one_by_one(
    live: Live,
    config: GenerationConfig,
    process: Processor,
    choose: Sampler,
    ends: Ends,
    watch: Watch | None = None,
) -> Steps:
    """Each sentence takes the token that `choose` gives, until its end."""
    outputs: dict[int, Hypothesis] = {}
    scores = live.logits.new_zeros(len(live.sentences))
    while True:
        length = live.generated + 1
        log_probs = process(live.logits, live.written).log_softmax(-1)
        tokens = choose(log_probs, live.sentences, live.generated)
        scores = scores + log_probs.gather(1, tokens[:, None]).squeeze(1)
        refuse_nan(scores)
        yield Step(live.sentences, tokens)
        stopped = ends.by_string(live.texts, tokens)
        ended = ends.by_id(tokens) | (live.limits <= length)
        if stopped is not None:
            ended |= stopped
        if watch is not None:
            watch(length, int((~ended).sum()))
        if not bool(ended.any()):
            live.go_on(tokens)
            continue
        rows = ended.nonzero().squeeze(1)
        final = scores[rows] / divisor(config, length)
        strings, full = None if stopped is None else stopped[rows], live.limits[rows] == length
        found = ends.hypotheses(live.texts(rows), tokens[rows], final, strings, full)
        outputs.update(zip(live.sentences[rows].tolist(), found, strict=True))
        staying = (~ended).nonzero().squeeze(1)
        if not len(staying):
            return [outputs[number] for number in sorted(outputs)]
        scores = scores[staying]
        live.go_on(tokens[staying], staying, staying)
