"""Scores of answers equal those of the scripts of SQuAD, written here from their definition."""

from __future__ import annotations

import random
import re
import string
from collections import Counter

import pytest

from trifold.errors import DataError
from trifold.scores.squad import SquadScore, normalize, score_answer

# --- the definition of the scripts ----------------------------------------------------------------


def normalize_answer(text):
    def remove_articles(text):
        return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(text.lower())))


def compute_f1(gold, pred, empty_agree):
    gold_toks, pred_toks = normalize_answer(gold).split(), normalize_answer(pred).split()
    if empty_agree and (len(gold_toks) == 0 or len(pred_toks) == 0):
        return int(gold_toks == pred_toks)
    num_same = sum((Counter(gold_toks) & Counter(pred_toks)).values())
    if num_same == 0:
        return 0
    precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
    return 2 * precision * recall / (precision + recall)


def scores_of_script(answers, pred, version):
    if version == "2.0":
        answers = [answer for answer in answers if normalize_answer(answer)] or [""]
    exact = max(int(normalize_answer(answer) == normalize_answer(pred)) for answer in answers)
    return exact, max(compute_f1(answer, pred, version == "2.0") for answer in answers)


# --- comparison -----------------------------------------------------------------------------------

WORDS = ["the", "The", "a", "An", "dog", "Dog", "dog's", "U.S.", "U", "S", "—", "«été»", "Ünï", "ﬁ", "İ", "...", "!",
         "1,000", "1000", "theory", "a-an", "\u00a0", "\u3000", "\t", "don't", "the-dog", "_"]  # fmt: skip


def draw(source):
    return source.choice(["", " "]).join(
        source.choices(WORDS, k=source.choice([0, 1, 1, 2, 3, 4, 6]))
    )


def test_normalized_answers_equal_the_script():
    source = random.Random(1)
    for _ in range(500):
        text = draw(source)
        assert normalize(text) == normalize_answer(text)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_scores_equal_the_script(version):
    source = random.Random(2)
    for _ in range(200):
        questions = []
        for _ in range(source.randint(1, 6)):
            answers = [draw(source) for _ in range(source.randint(version == "1.1", 4))]
            prediction = source.choice([*answers, draw(source)]) + source.choice(
                ["", " the", " dog"]
            )
            questions.append((answers, prediction))
        score = SquadScore(version)
        for answers, prediction in questions:
            score.add([answers], [prediction])
        expected = [scores_of_script(*question, version) for question in questions]
        values = score.values()
        mean = [100 * sum(column) / len(questions) for column in zip(*expected, strict=True)]
        assert [values["exact_match"], values["f1"]] == pytest.approx(mean)
        has_answer = [any(answers) for answers, _ in questions]
        assert ("no_answer_f1" in values) != all(has_answer)
        if not all(has_answer):
            for group, kind in (("answerable", True), ("no_answer", False)):
                part = [
                    each for each, has in zip(expected, has_answer, strict=True) if has == kind
                ] or [(0, 0)]
                mean = [100 * sum(column) / len(part) for column in zip(*part, strict=True)]
                assert [values[f"{group}_exact_match"], values[f"{group}_f1"]] == pytest.approx(
                    mean
                )


def test_scores_checked_by_hand():
    assert normalize("The  U.S. (an ally of a state)") == "us ally of state"
    assert score_answer(["the Denver Broncos", "Broncos"], "Denver Broncos!") == (1, 1)
    assert score_answer("Denver Broncos", "the Carolina Broncos") == (0, 0.5)
    assert score_answer(["in 1066", "year 1066 AD"], "1066") == (0, pytest.approx(2 / 3))
    assert score_answer("a a b", "b b") == (0, pytest.approx(2 / 3))
    assert score_answer([], "") == score_answer([""], "the") == (1, 1)
    assert score_answer([], "Denver") == score_answer("Denver", "") == (0, 0)
    assert score_answer(["the"], "a", "1.1") == (1, 0)


def test_questions_without_an_answer_have_scores_of_their_own():
    score = SquadScore()
    score.add(["red fox", [], [""]], ["fox", "", "fox"])
    assert score.values() == pytest.approx({
        "exact_match": 100 / 3, "f1": 100 * (2 / 3 + 1) / 3, "answerable_exact_match": 0,
        "answerable_f1": 200 / 3, "no_answer_exact_match": 50, "no_answer_f1": 50,
    })  # fmt: skip
    assert SquadScore().values() == {"exact_match": 0, "f1": 0}
    assert SquadScore().signature == "squad:2.0|references:best"


def test_version_1_1_rejects_questions_without_an_answer():
    with pytest.raises(DataError, match="a question has no answer"):
        SquadScore("1.1").add([[]], [""])
    with pytest.raises(DataError, match="0 predictions but 1 questions"):
        SquadScore().add(["fox"], [])


def test_answers_without_spaces_are_compared_by_characters():
    assert score_answer("北京大学", "北京大学。") == (1, 1)
    assert score_answer("北京大学", "北京") == (0, pytest.approx(2 / 3))
    assert score_answer(["東京", "とうきょう"], "東京都") == (0, pytest.approx(0.8))
    assert score_answer("ไทย", "ลาว") == (0, 0)
    assert score_answer("город Москва", "Москва!") == (0, pytest.approx(2 / 3))
    score = SquadScore()
    score.add(["北京大学", "Rome", []], ["北京", "Rome", ""])
    assert score.signature == "squad:2.0|references:best|words:characters in 1 of 3"
    assert score.values()["answerable_f1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    score = SquadScore()
    score.add(["Rome"], ["Rome"])
    assert score.signature == "squad:2.0|references:best"
