"""Answers against the span search of transformers, in one and several windows, and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.predict.references import FAMILIES, TEXTS, both, close

from trifold.errors import UsageError

pytestmark = pytest.mark.filterwarnings("default")

CONTEXT = ". ".join([*TEXTS, *TEXTS[::-1]])
QUESTIONS = ["who played", "what is the école", "where"]


def reference(pair, question, context, *, top_k=1, impossible=False, max_length=66, stride=33, longest=15):
    """The question-answering pipeline of transformers before version 5, from its remaining parts."""
    from transformers.pipelines.document_question_answering import select_starts_ends

    encoded = pair.tokenizer(
        question, context, truncation="only_second", max_length=max_length, stride=stride,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    found, nothing = [], 1.0
    for part in range(len(encoded["input_ids"])):
        ids = encoded["input_ids"][part]
        inputs = {"input_ids": torch.tensor([ids])}
        if "token_type_ids" in encoded:
            inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"][part]])
        with torch.no_grad():
            out = pair.theirs(**inputs)
        outside = np.array([[side != 1 for side in encoded.sequence_ids(part)]])
        outside[np.array([ids]) == pair.tokenizer.cls_token_id] = False
        starts, ends, scores, nothing = select_starts_ends(
            out.start_logits.numpy(), out.end_logits.numpy(), outside.astype(int), np.ones_like(outside, dtype=int),
            nothing, top_k * 2 + 10, impossible, longest,
        )  # fmt: skip
        for first, last, score in zip(starts, ends, scores, strict=True):
            words = (encoded[part].token_to_word(int(at)) for at in (first, last))
            begin, end = (encoded[part].word_to_chars(word, sequence_index=1) for word in words)
            found.append((float(score), begin[0], end[1]))
    if impossible:
        found.append((nothing, 0, 0))
    best = {}
    for score, begin, end in sorted(found, reverse=True):
        best.setdefault((begin, end), score)
    return [(score, *span) for span, score in best.items()][:top_k], len(encoded["input_ids"])


def same(mine, expected, context):
    assert [(one.start, one.end) for one in mine] == [span[1:] for span in expected]
    assert all(close(one.score, span[0]) for one, span in zip(mine, expected, strict=True))
    assert all(one.text == context[one.start : one.end] for one in mine)


@pytest.mark.parametrize("impossible", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_those_of_transformers(family, impossible, tmp_path):
    pair = both(tmp_path, family, "ForQuestionAnswering")
    options = {"max_length": 60, "stride": 20, "impossible": impossible, "top_k": 3}
    for context, several in ((CONTEXT, True), (TEXTS[0], False)):
        found = pair.ours.answer(QUESTIONS, context, **options)
        for question, mine in zip(QUESTIONS, found, strict=True):
            expected, parts = reference(pair, question, context, **options)
            assert (parts > 1) == several
            same(mine, expected, context)


def test_the_best_answer_has_the_highest_score_of_all_spans(tmp_path):
    pair = both(tmp_path, "bert", "ForQuestionAnswering")
    row = pair.ours.tokenizer.rows([QUESTIONS[0]], [TEXTS[0]])[0]
    logits = pair.ours.logits(torch.tensor([row.ids]), segments=torch.tensor([row.types]))[0]
    own = [n for n, side in enumerate(row.texts) if side == 1]
    start, end = logits[[0, *own]].softmax(0).T[:, 1:].tolist()
    for longest in (1, 3, 99):
        spans = [
            (start[a] * end[b], a, b) for a in range(len(own)) for b in range(a, len(own)) if b - a < longest
        ]
        mine = pair.ours.answer(QUESTIONS[0], TEXTS[0], max_answer_length=longest)[0]
        best = max(spans)
        assert close(mine.score, best[0])
        assert mine.start <= row.offsets[own[best[1]]][0]
        assert mine.end >= row.offsets[own[best[2]]][1]


def test_answers_are_whole_words(tmp_path):
    pair = both(tmp_path, "bert", "ForQuestionAnswering")
    for mine in pair.ours.answer(QUESTIONS[0], CONTEXT, top_k=9, max_length=50, stride=10):
        before, behind = CONTEXT[: mine.start][-1:], CONTEXT[mine.end :][:1]
        assert not (before.isalnum() and mine.text[0].isascii() and mine.text[0].isalnum()), mine
        assert not (behind.isalnum() and mine.text[-1].isascii() and mine.text[-1].isalnum()), mine


def test_a_question_without_room_for_the_context_is_an_error(tmp_path):
    ours = both(tmp_path, "bert", "ForQuestionAnswering").ours
    with pytest.raises(UsageError, match=r"text 2 of 2: .* shorten the first text"):
        ours.answer(["who", "who " * 60], CONTEXT)
