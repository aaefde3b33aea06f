"""Answers against the span search of transformers, in one and several windows, and against brute
force.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, both, close

from trifold.errors import UsageError
from trifold.predict.answer import SpanOptions, choose_answers

pytestmark = pytest.mark.filterwarnings("default")

CONTEXT = ". ".join([*TEXTS, *TEXTS[::-1]])
QUESTIONS = ["who played", "what is the école", "where"]


def reference(
    pair, question, context, *, top_k=1, impossible=False, max_length=66, stride=33, max_answer=15
):
    """The question-answering pipeline of transformers before version 5, from its remaining parts,
    except that a word is whole where a window cuts it.
    """
    from transformers.pipelines.document_question_answering import select_starts_ends

    encoded = pair.tokenizer(
        question, context, truncation="only_second", max_length=max_length, stride=stride,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    spans, no_answer = [], 1.0
    for part in range(len(encoded["input_ids"])):
        ids = encoded["input_ids"][part]
        inputs = {"input_ids": torch.tensor([ids])}
        if "token_type_ids" in encoded:
            inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"][part]])
        with torch.no_grad():
            out = pair.theirs(**inputs)
        masked = np.array([[side != 1 for side in encoded.sequence_ids(part)]])
        masked[np.array([ids]) == pair.tokenizer.cls_token_id] = False
        starts, ends, scores, no_answer = select_starts_ends(
            out.start_logits.numpy(), out.end_logits.numpy(), masked.astype(int), np.ones_like(masked, dtype=int),
            no_answer, top_k * 2 + 10, impossible, max_answer,
        )  # fmt: skip
        for first, last, score in zip(starts, ends, scores, strict=True):
            begin, end = (encoded[part].token_to_word(int(at)) for at in (first, last))
            chars = [
                window.word_to_chars(word, sequence_index=1)
                for word in (begin, end)
                for window in encoded.encodings
                if word
                in {
                    each
                    for each, side in zip(window.word_ids, window.sequence_ids, strict=True)
                    if side == 1
                }
            ]
            spans.append((float(score), min(chars)[0], max(stop for _, stop in chars)))
    if impossible:
        spans.append((no_answer, 0, 0))
    best = {}
    for score, begin, end in sorted(spans, reverse=True):
        best.setdefault((begin, end), score)
    return [(score, *span) for span, score in best.items()][:top_k], len(encoded["input_ids"])


def assert_same(got, expected, context):
    assert [(one.start, one.end) for one in got] == [span[1:] for span in expected]
    assert all(close(one.score, span[0]) for one, span in zip(got, expected, strict=True))
    assert all(one.text == context[one.start : one.end] for one in got)


@pytest.mark.parametrize("impossible", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_those_of_transformers(family, impossible, tmp_path):
    pair = both(tmp_path, family, "ForQuestionAnswering")
    options = {"max_length": 60, "stride": 20, "impossible": impossible, "top_k": 3}
    for context, in_windows in ((CONTEXT, True), (TEXTS[0], False)):
        answers = pair.ours.answer(QUESTIONS, context, **options)
        for question, got in zip(QUESTIONS, answers, strict=True):
            expected, count = reference(pair, question, context, **options)
            assert (count > 1) == in_windows
            assert_same(got, expected, context)


def test_the_best_answer_has_the_highest_score_of_all_spans(tmp_path):
    pair = both(tmp_path, "bert", "ForQuestionAnswering")
    row = pair.ours.tokenizer.rows([QUESTIONS[0]], [TEXTS[0]])[0]
    logits = pair.ours.logits(torch.tensor([row.ids]), segments=torch.tensor([row.types]))[0]
    context_tokens = [n for n, side in enumerate(row.texts) if side == 1]
    start, end = logits[[0, *context_tokens]].softmax(0).T[:, 1:].tolist()
    for max_answer in (1, 3, 99):
        columns = range(len(context_tokens))
        spans = [(a, b) for a in columns for b in columns if 0 <= b - a < max_answer]
        candidates = [(start[a] * end[b], a, b) for a, b in spans]
        got = pair.ours.answer(QUESTIONS[0], TEXTS[0], max_answer_length=max_answer)[0]
        best = max(candidates)
        assert close(got.score, best[0])
        assert got.start <= row.offsets[context_tokens[best[1]]][0]
        assert got.end >= row.offsets[context_tokens[best[2]]][1]


def test_answers_are_whole_words(tmp_path):
    pair = both(tmp_path, "bert", "ForQuestionAnswering")
    for got in pair.ours.answer(QUESTIONS[0], CONTEXT, top_k=9, max_length=50, stride=10):
        check_whole_words(got)


def check_whole_words(answer):
    before, after = CONTEXT[: answer.start][-1:], CONTEXT[answer.end :][:1]
    first, last = answer.text[0], answer.text[-1]
    assert not (before.isalnum() and first.isascii() and first.isalnum()), answer
    assert not (after.isalnum() and last.isascii() and last.isalnum()), answer


@pytest.mark.parametrize("at", [0, -1])
def test_a_word_that_a_window_cuts_is_whole(tmp_path, at):
    """The best answer is the first token of the context in a window, or the last one."""
    tokenizer = both(tmp_path, "bert", "ForQuestionAnswering").ours.tokenizer
    cut = 0
    for longest in range(30, 60):
        parts = tokenizer.windows(QUESTIONS[0], CONTEXT, max_length=longest, stride=10)
        for number, part in enumerate(parts):
            logits = [torch.zeros(len(each.ids), 2) for each in parts]
            token = [n for n, side in enumerate(part.texts) if side == 1][at]
            logits[number][token] = 20
            options = SpanOptions(1, 15, impossible=False)
            [got] = choose_answers(parts, iter(logits), CONTEXT, tokenizer.cls_id, options)
            check_whole_words(got)
            cut += (got.start, got.end) != part.offsets[token]
    assert cut > 5


def test_a_question_that_leaves_no_space_for_the_context_is_an_error(tmp_path):
    ours = both(tmp_path, "bert", "ForQuestionAnswering").ours
    with pytest.raises(UsageError, match=r"text 2 of 2: .* shorten the first text"):
        ours.answer(["who", "who " * 60], CONTEXT)
