"""Scores of generated text; each equals the value of its reference tool."""

from collections.abc import Callable

from trifold.scores.bleu import Score, bleu, chrf, exact_match

SCORES: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}

__all__ = ["SCORES", "Score", "bleu", "chrf", "exact_match"]
