"""Scores; each equals the value of its reference tool.

BLEU and chrF are functions of a whole corpus. The other modules have a class for each task: `add` references and
predictions, batch by batch, then read `values()` by name. `signature` states how they are computed.
"""

from collections.abc import Callable

from trifold.scores.bleu import Score, bleu, chrf, exact_match

SCORES: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}

__all__ = ["SCORES", "Score", "bleu", "chrf", "exact_match"]
