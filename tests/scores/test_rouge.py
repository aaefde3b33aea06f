"""ROUGE equals rouge-score."""

from __future__ import annotations

import random

import pytest

from trifold.errors import DataError
from trifold.scores.rouge import RougeScore, common_subsequence, tokenize

WORDS = """the The cat cats sat sitting runs running ran relational conditioning happily flies dies died skies news
    naïve Straße Œuvre 1990s 1,000 don't e-mail U.S. — … _ "quoted" (bracket) generalizations hopefulness sky owed agreed
    proceed controlling falling hopping filed analogously archaeology ionization adoption ended yyyy""".split()


def draw(source):
    return source.choice([" ", " ", "\n"]).join(
        source.choices(WORDS, k=source.choice([0, 1, 2, 5, 9, 20, 40]))
    )


def test_scores_equal_rouge_score():
    rouge = pytest.importorskip("rouge_score.rouge_scorer")
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = rouge.RougeScorer(names, use_stemmer=False)
    source = random.Random(1)
    score, sums = RougeScore(), dict.fromkeys(names, 0.0)
    for count in range(1, 301):
        references = [draw(source) for _ in range(source.choice([1, 1, 3]))]
        prediction = source.choice([references[0] + " " + draw(source), draw(source)])
        before = score.values()
        score.add([references if len(references) > 1 else references[0]], [prediction])
        expected = scorer.score_multi(references, prediction)
        for name, value in score.values().items():
            mine = (value * count - before[name] * (count - 1)) / 100
            assert mine == pytest.approx(expected[name].fmeasure, abs=1e-9), (
                references,
                prediction,
            )
            sums[name] += expected[name].fmeasure
    assert score.values() == pytest.approx(
        {name: 100 * total / 300 for name, total in sums.items()}
    )


def test_the_common_subsequence_is_the_longest():
    def length(one, other):
        if not one or not other:
            return 0
        if one[0] == other[0]:
            return 1 + length(one[1:], other[1:])
        return max(length(one[1:], other), length(one, other[1:]))

    source = random.Random(3)
    for _ in range(200):
        one, other = ("".join(source.choices("abc", k=source.randint(0, 7))) for _ in range(2))
        assert (
            common_subsequence(one, other) == common_subsequence(other, one) == length(one, other)
        )


def test_words_are_ascii_letters_and_digits():
    assert tokenize("Café-1990s don't!") == ["caf", "1990s", "don", "t"]
    assert tokenize("cats running as") == ["cats", "running", "as"]


PERFECT = [
    "Собака бежит по траве.",
    "สุนัขวิ่งบนหญ้า",
    "狗在草地上跑。",
    "犬が走る。",
    "कुत्ता दौड़ता है।",
    "الكلب يركض.",
]


@pytest.mark.parametrize("text", PERFECT)
def test_a_perfect_summary_scores_100_in_every_script(text):
    score = RougeScore()
    score.add([text], [text])
    assert score.values() == {"rouge1": 100, "rouge2": 100, "rougeL": 100}
    assert score.signature == "measure:f1|stemming:no|references:best|words:unicode"
    other = RougeScore()
    other.add([text], ["A dog runs."])
    assert other.values() == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def test_scores_of_other_scripts_by_hand():
    score = RougeScore()
    score.add(["Собака БЕЖИТ по траве"], ["собака, бежит домой"])  # 2 of 4 words, and 2 of 3
    assert score.values() == pytest.approx(
        {"rouge1": 100 * 4 / 7, "rouge2": 40, "rougeL": 100 * 4 / 7}
    )
    score = RougeScore()
    score.add(["狗在草地上跑"], ["狗跑"])  # 2 of 6 characters, and 2 of 2
    assert score.values() == pytest.approx({"rouge1": 50, "rouge2": 0, "rougeL": 50})


def test_each_example_has_the_words_of_its_script():
    score = RougeScore()
    assert score.signature == "measure:f1|stemming:no|references:best"
    score.add(["Größe naïve", "Собака бежит"], ["Gr e na ve", "Собака бежит"])
    assert score.values()["rouge1"] == 100  # rouge-score knows ASCII letters only
    assert score.signature.endswith("|words:unicode in 1 of 2")


def test_nothing_scores_zero():
    score = RougeScore()
    assert score.values() == {"rouge1": 0, "rouge2": 0, "rougeL": 0}
    score.add(["", "—", "a cat"], ["", "a cat", ""])
    assert score.values() == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


def test_texts_without_a_reference_are_errors():
    with pytest.raises(DataError, match="ROUGE: the prediction 'a cat' has no reference"):
        RougeScore().add([[]], ["a cat"])
    with pytest.raises(DataError, match="2 predictions but 1 references"):
        RougeScore().add(["a"], ["a", "b"])
