"""Scores equal those of sacreBLEU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trifold.errors import DataError
from trifold.scores import SCORES, bleu, chrf, exact_match

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
