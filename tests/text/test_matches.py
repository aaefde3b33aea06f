"""Which tokens of two texts stand in a word of the other one."""

from __future__ import annotations

import random

import pytest

from trifold.errors import UsageError
from trifold.scripts import unicode_words, word_spans
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer
from trifold.text.matches import NONE, SAME_STEM, SAME_WORD

FIRST = "The Runners didn't stop: İstanbul, 42 cafés!"
SECOND = "A runner stopped in i\u0307stanbul; the Cafe\u0301s had 42."
SPECIAL = ["cls", "sep", "mask"]


@pytest.fixture(scope="module", params=["word", "bpe", "char", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    values = {"kind": request.param, "special": SPECIAL}
    if request.param == "word":
        values["min_frequency"] = 1
    return make_tokenizer([FIRST, SECOND], TokenizerSettings.parse(values))


def by_hand(text: str, other: str) -> dict[int, int]:
    """The match of each character that is part of a word."""
    others = unicode_words(other)
    found = {}
    for word, start, end in word_spans(text):
        value = NONE
        if any(word[:4] == each[:4] for each in others):
            value = SAME_WORD if word in others else SAME_STEM
        found |= dict.fromkeys(range(start, end), value)
    return found


def test_the_example_has_each_kind() -> None:
    values = {word: by_hand(FIRST, SECOND)[start] for word, start, _ in word_spans(FIRST)}
    assert values == {
        **{"the": SAME_WORD, "runners": SAME_STEM, "didn": NONE, "t": NONE, "stop": SAME_STEM},
        **{"i\u0307stanbul": SAME_WORD, "42": SAME_WORD, "cafés": NONE},
    }


def test_a_token_has_the_match_of_its_word(tokenizer: Tokenizer) -> None:
    (row,) = tokenizer.rows([FIRST], [SECOND], compares=True)
    expected = (by_hand(FIRST, SECOND), by_hand(SECOND, FIRST))
    assert len(row.matches) == len(row.ids)
    for value, text, (start, end) in zip(row.matches, row.texts, row.offsets, strict=True):
        of_text = {} if text is None else expected[text]
        assert value == max((of_text.get(place, NONE) for place in range(start, end)), default=NONE)
    assert {*row.matches} == {NONE, SAME_STEM, SAME_WORD}


def test_truncated_rows_and_windows_compare_whole_texts(tokenizer: Tokenizer) -> None:
    (whole,) = tokenizer.rows([FIRST], [SECOND], compares=True)
    (cut,) = tokenizer.rows([FIRST], [SECOND], max_length=len(whole.ids) - 6, compares=True)
    assert len(cut.ids) == len(whole.ids) - 6
    rows = [
        cut,
        *tokenizer.windows(FIRST, SECOND, max_length=len(whole.ids) - 4, stride=1, compares=True),
    ]
    matches = {
        (text, *span): value
        for value, text, span in zip(whole.matches, whole.texts, whole.offsets, strict=True)
        if text is not None
    }
    for row in rows:
        for value, text, span in zip(row.matches, row.texts, row.offsets, strict=True):
            assert value == matches.get((text, *span), NONE)


def test_single_texts_are_not_compared(tokenizer: Tokenizer) -> None:
    assert tokenizer.rows([FIRST], compares=True)[0].matches == []
    assert tokenizer.rows([FIRST], [SECOND])[0].matches == []


def test_a_tokenizer_without_positions_cannot_compare(tokenizer: Tokenizer) -> None:
    segmented = Tokenizer(tokenizer.library, names=tokenizer.names, segment=str.split)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="positions of tokens"):
        segmented._check_offsets()


def test_words_with_places_are_the_words() -> None:
    rng = random.Random(1)
    letters = "aB cİ\u200dΣςé漢 字.,'3\n\u00adZßŒ"
    for _ in range(3000):
        text = "".join(rng.choices(letters, k=rng.randrange(12)))
        spans = [*word_spans(text)]
        assert [word for word, _, _ in spans] == unicode_words(text)
        ends = [0, *(end for _, _, end in spans)]
        for (word, start, end), before in zip(spans, ends, strict=False):
            assert before <= start < end <= len(text)
            part = unicode_words(text[start:end].replace("Σ", "σ"))
            assert part == [word.replace("ς", "σ")] or "ς" in text[start:end]
