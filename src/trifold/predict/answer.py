"""Answers to questions, as spans of a text that holds them (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2).

prediction      question + a part of the context -> start and end logits -> P(start) · P(end) of every span

A long context is cut into parts that overlap; the best spans of all parts are the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.predict.reading import Reading
from trifold.text import Encoded

LONGEST, OVERLAP = 384, 128  # tokens, as those who fine-tuned BERT have it
GROUP = 16  # questions whose parts are read together


class Answer(NamedTuple):
    """A span [start, end) of the context's characters, with P(start) · P(end); no text: there is no answer."""

    text: str
    score: float
    start: int
    end: int


def answer(
    reading: Reading,
    texts: Sequence[str],
    pairs: Sequence[str],
    *,
    top_k: int = 1,
    max_answer_length: int = 15,
    impossible: bool = False,
    max_length: int | None = None,
    stride: int | None = None,
) -> list[list[Answer]]:
    """The `top_k` best answers to each question of `texts` in its context of `pairs`, best first, in whole words.

    An answer has at most `max_answer_length` tokens; with `impossible`, that there is none may be the answer. Parts of
    a context have `max_length` tokens with the question (384, or the model's most) and overlap by `stride` (128, or
    half a part). Raises DataError for a side without tokens, UsageError for a question that leaves no room.
    """
    tokenizer = reading.reader
    if not tokenizer.has_offsets:
        raise UsageError(
            "this tokenizer does not know where in a text its tokens stand: answers would have no place"
        )
    limit = reading.config.max_positions
    longest = min(LONGEST if max_length is None else max_length, limit)
    overlap = min(OVERLAP, longest // 2) if stride is None else stride
    found: list[list[Answer]] = []
    for start in range(0, len(texts), GROUP):
        group = range(start, min(start + GROUP, len(texts)))
        windows = []
        for number in group:
            place = reading.place(number, len(texts))
            try:
                parts = tokenizer.windows(texts[number], pairs[number], max_length=longest, stride=overlap)
            except UsageError as error:
                raise UsageError(f"{place}: {error}") from None
            if not all(side in parts[0].texts for side in (0, 1)):
                raise DataError(f"{place} has no tokens on one side: a question and a context are needed")
            windows += [(number, part) for part in parts]
        quiet = replace(reading, on_done=None)  # it would count parts
        logits = quiet.through([part for _, part in windows], reading.head("span"))
        for number in group:
            spans: list[Answer] = []
            nothing = 1.0
            for (of, part), both in zip(windows, logits, strict=True):
                if of == number:
                    some, none = _spans(
                        part, both[: len(part.ids)], pairs[number], tokenizer.cls_id, max_answer_length, top_k
                    )
                    spans, nothing = spans + some, min(nothing, none)
            found.append(_best(spans + [Answer("", nothing, 0, 0)] * impossible, top_k))
        if reading.on_done is not None:
            reading.on_done(len(group))
    return found


def _spans(
    part: Encoded, logits: Tensor, context: str, cls_id: int | None, longest: int, top_k: int
) -> tuple[list[Answer], float]:
    """Answers in one part, and the probability that it holds none; logits (T, 2).

    The class token takes part in the softmax, as the place of "no answer", and is never in a span.
    """
    own = torch.tensor([side == 1 for side in part.texts])
    seen = own | torch.tensor([token == cls_id for token in part.ids])
    start, end = logits.masked_fill(~seen[:, None], float("-inf")).softmax(0).T
    spans = (start[:, None] * end[None, :]).triu().tril(longest - 1)
    spans = spans.masked_fill(~(own[:, None] & own[None, :]), 0.0)
    # More than are wanted, because several may stand for the same words.
    best = spans.flatten().topk(min(2 * top_k + 10, spans.numel()))
    found = []
    for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        first, last = divmod(place, len(part.ids))
        if score > 0:
            begin, finish = _whole_words(part, first, last)
            found.append(Answer(context[begin:finish], score, begin, finish))
    return found, float(start[0] * end[0])


def _whole_words(part: Encoded, first: int, last: int) -> tuple[int, int]:
    """The characters of the words that the tokens `first` to `last` are of; their own where a token is of no word."""
    places = [n for n, side in enumerate(part.texts) if side == 1]
    if part.words[first] is None or part.words[last] is None:
        return part.offsets[first][0], part.offsets[last][1]
    begin = next(n for n in places if part.words[n] == part.words[first])
    finish = next(n for n in reversed(places) if part.words[n] == part.words[last])
    return part.offsets[begin][0], part.offsets[finish][1]


def _best(spans: Sequence[Answer], top_k: int) -> list[Answer]:
    """The same span is said once, with its best score."""
    said: dict[tuple[int, int], Answer] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        said.setdefault((span.start, span.end), span)
    return list(said.values())[:top_k]
