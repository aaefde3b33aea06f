"""Extractive question answering (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2).

question + a window of the context -> start and end logits -> P(start) · P(end) of every span

A long context is read in overlapping windows; the best spans of all windows are the answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.predict.model_reader import ModelReader
from trifold.text import Encoded, Tokenizer

# Tokens of a window, and those that windows share, as in BERT's fine-tuning.
MAX_LENGTH = 384
STRIDE = 128
MAX_ANSWER_LENGTH = 15  # tokens
# Setting of a tokenizer: the most tokens of an answer, if training has counted longer ones.
LONGEST_ANSWER = "max_answer_length"
GROUP = 16  # questions that are read together


class Answer(NamedTuple):
    """A span [start, end) of the context's characters, with P(start) · P(end); empty text: no
    answer.
    """

    text: str
    score: float
    start: int
    end: int


class SpanOptions(NamedTuple):
    """Options of `answer` that choose among the spans."""

    top_k: int
    max_answer_length: int
    impossible: bool


def answer(
    reader: ModelReader,
    texts: Sequence[str],
    pairs: Sequence[str],
    *,
    top_k: int = 1,
    max_answer_length: int | None = None,
    impossible: bool = False,
    max_length: int | None = None,
    stride: int | None = None,
) -> list[list[Answer]]:
    """The `top_k` best answers to each question of `texts` in its context of `pairs`, best first,
    as whole words.

    An answer has at most `max_answer_length` tokens (those of the model, or 15); with `impossible`,
    an empty answer is possible. Windows have `max_length` tokens including the question (384, or
    the model's positions) and overlap by `stride` tokens (128, or half a window). Raises DataError
    for a side without tokens, UsageError if a question leaves no room for the context.
    """
    tokenizer = reader.required_tokenizer
    if not tokenizer.has_offsets:
        raise UsageError(
            "this tokenizer does not provide the positions of tokens, which answers require"
        )
    longest, overlap = window_sizes(max_length, stride, reader.config.max_positions)
    if max_answer_length is None:
        max_answer_length = most_answer_tokens(tokenizer)
    options = SpanOptions(top_k, max_answer_length, impossible)
    answers = list[list[Answer]]()
    for start in range(0, len(texts), GROUP):
        group = range(start, min(start + GROUP, len(texts)))
        windows_of_questions = [
            read_windows(
                tokenizer,
                texts[n],
                pairs[n],
                longest,
                overlap,
                reader.place(n, len(texts)),
                parse_special=reader.parses_special,
                compares=reader.config.word_matches,
            )
            for n in group
        ]
        silent = replace(reader, on_done=None)  # which would count windows instead of questions
        rows = [window for windows in windows_of_questions for window in windows]
        logits = iter(silent.run_rows(rows, reader.head("span")))
        for n, windows in zip(group, windows_of_questions, strict=True):
            answers.append(choose_answers(windows, logits, pairs[n], tokenizer.cls_id, options))
        if reader.on_done is not None:
            reader.on_done(len(group))
    return answers


def most_answer_tokens(tokenizer: Tokenizer) -> int:
    """The most tokens of an answer of a model with this tokenizer."""
    value = (tokenizer.settings or {}).get(LONGEST_ANSWER)
    return value if isinstance(value, int) and value > 0 else MAX_ANSWER_LENGTH


def window_sizes(max_length: int | None, stride: int | None, positions: int) -> tuple[int, int]:
    """The tokens of a window, and those that windows share, for a model with so many positions."""
    if max_length is None:
        max_length = MAX_LENGTH
    longest = min(max_length, positions)
    if stride is None:
        stride = min(STRIDE, longest // 2)
    return longest, stride


def read_windows(
    tokenizer: Tokenizer,
    question: str,
    context: str,
    longest: int,
    overlap: int,
    place: str,
    *,
    parse_special: bool = False,
    compares: bool = False,
) -> list[Encoded]:
    """The question with each window of the context. compares: mark the words that both have.

    Raises DataError for a side without tokens, UsageError if the question leaves no room; both name
    the `place`.
    """
    try:
        parts = tokenizer.windows(
            question,
            context,
            max_length=longest,
            stride=overlap,
            special_in_text=parse_special,
            compares=compares,
        )
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    if not all(side in parts[0].texts for side in (0, 1)):
        raise DataError(f"{place} has no tokens on one side; give a question and a context")
    return parts


def choose_answers(
    parts: Sequence[Encoded],
    logits: Iterator[Tensor],
    context: str,
    cls_id: int | None,
    options: SpanOptions,
) -> list[Answer]:
    """The best answers in all windows of a context, best first.

    parts: the windows. logits: yields those of each window in turn, (T, 2) or longer, and may
    continue with the next context.
    """
    spans: list[Answer] = []
    no_answer = 1.0
    bounds = word_bounds(parts)
    # `parts` comes first: `zip` stops at its end before it takes logits of the next context.
    for part, logits_of_part in zip(parts, logits, strict=False):
        spans_of_part, no_answer_in_part = _spans(
            part, logits_of_part[: len(part.ids)], bounds, context, cls_id, options
        )
        spans += spans_of_part
        no_answer = min(no_answer, no_answer_in_part)
    if options.impossible:
        spans.append(Answer("", no_answer, 0, 0))
    distinct: dict[tuple[int, int], Answer] = {}  # equal spans once, with their best score
    for span in sorted(spans, key=lambda span: -span.score):
        distinct.setdefault((span.start, span.end), span)
    return list(distinct.values())[: options.top_k]


def is_visible(part: Encoded, cls_id: int | None) -> list[bool]:
    """Which tokens take part in the softmax: those of the context, and the class token, which means
    "no answer".
    """
    return [side == 1 or token == cls_id for side, token in zip(part.texts, part.ids, strict=True)]


def _spans(
    part: Encoded,
    logits: Tensor,
    bounds: Mapping[int, tuple[int, int]],
    context: str,
    cls_id: int | None,
    options: SpanOptions,
) -> tuple[list[Answer], float]:
    """Answers in one window, and the probability that it has no answer; logits (T, 2).

    The class token is never in a span.
    """
    in_context = torch.tensor([side == 1 for side in part.texts])
    visible = torch.tensor(is_visible(part, cls_id))
    start, end = logits.masked_fill(~visible[:, None], float("-inf")).softmax(0).T
    spans = (start[:, None] * end[None, :]).triu().tril(options.max_answer_length - 1)
    spans = spans.masked_fill(~(in_context[:, None] & in_context[None, :]), 0.0)
    # More than top_k, because several spans may stand for the same words.
    best = spans.flatten().topk(min(2 * options.top_k + 10, spans.numel()))
    answers = []
    for score, cell in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        if score > 0:
            first, last = divmod(cell, len(part.ids))
            begin, finish = _whole_words(part, bounds, first, last)
            answers.append(Answer(context[begin:finish], score, begin, finish))
    return answers, float(start[0] * end[0])


def word_bounds(parts: Sequence[Encoded]) -> dict[int, tuple[int, int]]:
    """The characters of each word of the context. A window may end inside a word, whose other
    tokens are in the next one.
    """
    bounds: dict[int, tuple[int, int]] = {}
    for part in parts:
        for side, word, (begin, finish) in zip(part.texts, part.words, part.offsets, strict=True):
            if side == 1 and word is not None:
                first, last = bounds.get(word, (begin, finish))
                bounds[word] = min(first, begin), max(last, finish)
    return bounds


def _whole_words(
    part: Encoded, bounds: Mapping[int, tuple[int, int]], first: int, last: int
) -> tuple[int, int]:
    """The characters of the words of the tokens `first` to `last`; of the tokens themselves if they
    have no words.
    """
    begins, ends = part.words[first], part.words[last]
    if begins is None or ends is None:
        return part.offsets[first][0], part.offsets[last][1]
    return bounds[begins][0], bounds[ends][1]
