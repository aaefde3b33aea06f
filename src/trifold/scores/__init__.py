"""Scores; each equals the value of its reference tool.

BLEU and chrF are functions of a whole corpus. The other modules have a class for each task: `add`
references and predictions, batch by batch, then read `values()` by name. `signature` states how
they are computed.
"""

from trifold.scores.bleu import SCORES, Score, bleu, chrf, exact_match

# Scores of language models differ in the third digit, and correlations are at most 1; the others
# are percentages.
DIGITS = {"bits_per_byte": 4, "loss": 4} | dict.fromkeys(
    ("matthews", "pearson", "perplexity", "spearman"), 3
)

LOWER_IS_BETTER = ("bits_per_byte", "loss", "perplexity")


def score_name(key: str) -> str:
    """`BLEU`, `bits per byte`."""
    return {"bleu": "BLEU", "chrf": "chrF2"}.get(key, key.replace("_", " "))


def score_text(key: str, value: float) -> str:
    """`BLEU 41.20`, `bits per byte 2.3812`."""
    return f"{score_name(key)} {value:.{DIGITS.get(key, 2)}f}"


__all__ = [
    "DIGITS",
    "LOWER_IS_BETTER",
    "SCORES",
    "Score",
    "bleu",
    "chrf",
    "exact_match",
    "score_name",
    "score_text",
]
