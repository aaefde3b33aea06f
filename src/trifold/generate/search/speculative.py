"""Several tokens for one reading: somebody proposes what may come next, the model reads it at once and keeps as much
as it would have said itself (Leviathan et al. 2023; Saxena 2023 for the look-up).

A token is chosen as by `one_by_one`, from the same logits and the same random number, so that the text is the same,
greedy or drawn; proposals decide how fast it comes, and nothing else. Each row is written on its own, since rows would
keep different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.generate.config import GenerationConfig
from trifold.generate.ends import Ends
from trifold.generate.live import Live, Model
from trifold.generate.processors import Processor, Written
from trifold.generate.samplers import Sampler
from trifold.generate.search.finished import Watch, divisor, refuse_nan
from trifold.generate.search.single import Step, Steps
from trifold.nn import Inputs


class Draft(Protocol):
    """Who proposes."""

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow `text`, which is all that was generated so far."""


def speculative(
    live: Live,
    draft: Draft,
    count: int,
    config: GenerationConfig,
    process: Processor,
    choose: Sampler,
    ends: Ends,
    watch: Watch | None = None,
) -> Steps:
    """The output of one sentence, proposals of `count` tokens being checked at once."""
    assert len(live.sentences) == 1, "rows keep different numbers of tokens"
    limit, score, logits = int(live.limits[0]), live.logits.new_zeros(1), live.logits
    text: list[int] = []
    proposed: list[int] = []
    while True:
        for place in range(len(logits)):
            written = live.written
            log_probs = process(logits[place : place + 1], written).log_softmax(-1)
            token = choose(log_probs, live.sentences, live.generated)
            score = score + log_probs[:, int(token)]
            stopped = ends.by_string(live.texts, token)
            text.append(int(token))
            live.write(token)
            full, by_string = live.generated == limit, stopped is not None and bool(stopped)
            ended = full or by_string or text[-1] in ends.ids
            if watch is not None:
                watch(live.generated, int(not ended))
            yield Step(live.sentences, token)
            if ended:
                refuse_nan(score)
                final = float(score) / divisor(config, live.generated)
                return [ends.hypothesis(text[:-1], text[-1], final, by_string, full)]
            if place == len(proposed) or text[-1] != proposed[place]:
                break
        refuse_nan(score)
        live.unread(len(proposed) - place)
        proposed = draft.propose(text, min(count, limit - len(text) - 1))
        tokens = torch.tensor([[text[-1], *proposed]], device=token.device)
        logits = live.head(live.read(tokens)[0])


class DraftModel:
    """A smaller model with the same vocabulary proposes what it would say itself, chosen in the same way."""

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        config: GenerationConfig,
        process: Processor,
        choose: Sampler,
        ends: Ends,
        sentence: Tensor,
        limit: int,
    ) -> None:
        """sentence: (1,) by which number the sampler knows the row. limit: the most tokens that it may get."""
        longest = {"max_length": None, "max_new_tokens": limit}
        self._live = Live(model, inputs, config.model_copy(update=longest))
        self._process, self._choose, self._ends, self._sentence = process, choose, ends, sentence
        self._room = model.config.max_positions - self._live.tokens.shape[1]
        self._prompt, self._read = self._live.tokens, list[int]()

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """See Draft."""
        live, common = self._live, _in_common(text[:-1], self._read)
        count = min(count, self._room - len(text))
        if count < 1:
            return []
        live.unread(len(self._read) - common)
        self._read = list(text)
        new = torch.tensor([list(text)[common:]], device=self._prompt.device)
        proposed: list[int] = []
        while True:
            logits = live.head(live.read(new)[:, -1])
            known = torch.tensor([[*text, *proposed]], device=new.device)
            length = known.shape[1]
            left = torch.full((1,), count + 1, device=new.device)
            written = Written(torch.cat([self._prompt, known], dim=1), length, left)
            log_probs = self._process(logits, written).log_softmax(-1)
            token = self._choose(log_probs, self._sentence, length)
            proposed.append(int(token))
            if len(proposed) == count or proposed[-1] in self._ends.ids:
                return proposed
            self._read.append(proposed[-1])
            new = token[:, None]


class Lookup:
    """What followed the last few tokens when they stood together before, in the prompt or the text."""

    def __init__(self, before: Sequence[int], longest: int) -> None:
        self._before, self._longest = list(before), longest

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """See Draft. The longest n-gram goes first, and of its places the last one."""
        known = np.array([*self._before, *text])
        for size in range(min(self._longest, len(known) - 1), 0, -1):
            grams = np.lib.stride_tricks.sliding_window_view(known[:-1], size)
            places = np.flatnonzero((grams == known[-size:]).all(1))
            if len(places):
                start = int(places[-1]) + size
                return [int(token) for token in known[start : start + max(count, 0)]]
        return []


def check_draft(model: Model, draft: Model) -> None:
    """Raises UsageError for a draft that cannot propose for the model."""
    mine, its = model.config, draft.config
    for key in ("shape", "vocab_size", "output_vocab_size", "eos_id", "pad_id", "start_id"):
        if getattr(mine, key) != getattr(its, key):
            raise UsageError(
                f"the draft model's {key} is {getattr(its, key)}, and the model's {getattr(mine, key)}: "
                "a draft must have the same shape and vocabulary"
            )


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens the two begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
