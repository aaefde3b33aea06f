"""How good an output is, each score equal to that of its reference tool."""

from collections.abc import Callable

from trifold.scores.bleu import Score, bleu, chrf, exact_match

SCORES: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}

__all__ = ["SCORES", "Score", "bleu", "chrf", "exact_match"]
