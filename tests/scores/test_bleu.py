"""Scores equal those of sacreBLEU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trifold.errors import DataError
from trifold.installation import pip_command
from trifold.scores import SCORES, bleu, chrf, exact_match
from trifold.scores.bleu import choose_tokenizer, missing_libraries, text_scorer, tokenizer_note

REFERENCES = [
    "A dog runs across the green grass .",
    "Two men, wearing hats, are talking.",
    "The \"quick\" brown fox isn't lazy; it's fast.",
    "Ein Mädchen klettert in ein Spielhaus aus Holz.",
]
HYPOTHESES = [
    "A dog runs over the green grass .",
    "two Men wearing hats are talking .",
    "The \"quick\" brown fox isn't lazy; it's fast.",
    "Ein Mädchen klettert auf ein Haus aus Holz.",
]


@pytest.mark.parametrize(
    ("score", "flags"),
    [
        (lambda: bleu(HYPOTHESES, REFERENCES), ["-m", "bleu"]),
        (lambda: bleu(HYPOTHESES, REFERENCES, lowercase=True), ["-m", "bleu", "-lc"]),
        (
            lambda: bleu(HYPOTHESES, REFERENCES, tokenize="none"),
            ["-m", "bleu", "--tokenize", "none", "--force"],
        ),
        (lambda: chrf(HYPOTHESES, REFERENCES), ["-m", "chrf"]),
    ],
)
def test_values_and_signatures_equal_sacrebleu(
    score: Any, flags: list[str], tmp_path: Path
) -> None:
    for name, lines in (("ref", REFERENCES), ("hyp", HYPOTHESES)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [tmp_path / "ref", "-i", tmp_path / "hyp"]
    command = [sys.executable, "-m", "sacrebleu", *files, *flags, "-w", "10"]
    expected = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    got = score()
    assert round(got.value, 10) == expected["score"]
    assert (got.name, got.signature) == (expected["name"], expected["signature"])


def test_exact_match_is_a_percentage() -> None:
    assert exact_match(HYPOTHESES, REFERENCES).value == 25
    assert exact_match(["A "], ["a"]).value == 0
    assert exact_match(["A "], ["a"], lowercase=True).value == 100
    assert (
        str(exact_match(["a"], ["a"])) == "exact match 100.00 (nrefs:1|case:mixed|space:stripped)"
    )


@pytest.mark.parametrize("name", SCORES)
def test_perfect_outputs_score_100_and_lengths_must_agree(name: str) -> None:
    score = SCORES[name]
    assert score(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert score(["x"] * 4, REFERENCES).value < 10
    with pytest.raises(DataError, match="1 predictions but 4 references"):
        score(["x"], REFERENCES)
    with pytest.raises(DataError, match="nothing to score"):
        score([], [])


CHOSEN = {
    "zh": ["狗在绿色的草地上跑。", "两个男人在说话。"],
    "char": ["สุนัขวิ่งข้ามหญ้าสีเขียว", "ผู้ชายสองคนกำลังคุยกัน"],
    "13a": ["Собака бежит по зелёной траве.", "Двое мужчин разговаривают."],
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_script_of_the_references_chooses_the_tokenizer(name: str) -> None:
    references = CHOSEN[name]
    outputs = [references[0], references[1][3:]]
    perfect, some = bleu(references, references), bleu(outputs, references)
    assert perfect.value == pytest.approx(100)
    assert f"|tok:{name}|" in perfect.signature
    assert some == bleu(outputs, references, tokenize=name) and 0 < some.value < 100
    resampled = text_scorer("bleu", outputs, references, lowercase=False, tokenize="auto")
    assert resampled(np.arange(2)) == {"bleu": pytest.approx(some.value)}
    assert (tokenizer_note(references) is None) == (name == "13a")


def test_japanese_needs_a_library_or_is_compared_by_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = sys.modules["trifold.scores.bleu"]  # the function has the same name
    references = ["犬が緑の芝生を走る。", "二人の男が話している。"]
    for spec, name in ((None, "char"), (object(), "ja-mecab")):
        monkeypatch.setattr(module, "find_spec", lambda _, spec=spec: spec)
        assert choose_tokenizer(references) == name
        assert (missing_libraries("ja-mecab") is None) == (spec is not None)
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    install = pip_command("install", "sacrebleu[ja]")
    assert missing_libraries("ja-mecab") == (
        f"ja-mecab needs MeCab and ipadic; install them with `{install}`, or choose char"
    )
    assert bleu(references, references).value == pytest.approx(100)
    assert missing_libraries("13a") is None


def test_other_words_in_the_references_do_not_change_the_tokenizer() -> None:
    for references in (REFERENCES, ["The city of 東京 is large."], ["12 + 3"], [""]):
        assert choose_tokenizer(references) == "13a"
    assert choose_tokenizer(["请在 GitHub 上查看 TensorFlow 的说明。"]) == "zh"
