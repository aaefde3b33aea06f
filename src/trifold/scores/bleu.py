"""Scores of generated text against one reference each; sacreBLEU's, so that they compare with published ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from trifold.errors import DataError


class Score(NamedTuple):
    """A value in percent, and the signature that says exactly how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018). `tokenize="none"` for text that is tokenised already."""
    _check(hypotheses, references)
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("BLEU", float(value), str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Corpus chrF2: F-score of character 6-grams (Popović 2015)."""
    _check(hypotheses, references)
    metric = CHRF(lowercase=lowercase)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("chrF2", float(value), str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Share of hypotheses equal to their reference, but for white space at both ends, in percent."""
    _check(hypotheses, references)

    def plain(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    equal = sum(plain(ours) == plain(theirs) for ours, theirs in zip(hypotheses, references, strict=True))
    case = "lc" if lowercase else "mixed"
    return Score("exact match", 100 * equal / len(references), f"nrefs:1|case:{case}|space:stripped")


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses):,} outputs but {len(references):,} references; they must pair up")
    if not references:
        raise DataError("nothing to score: there is no reference")
