"""Which baselines an objective has, and how they are fitted."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from trifold.baselines.baseline import Baseline, LabelledRows, Poll
from trifold.baselines.choices import OverlappingChoice
from trifold.baselines.forms import FormModel
from trifold.baselines.lead import LeadSentences
from trifold.baselines.majority import FrequentChoice, FrequentLabel, Mean
from trifold.baselines.pairs import PairOverlap, SimilarWords
from trifold.baselines.pixels import PixelModel
from trifold.baselines.sentences import OverlappingSentence
from trifold.baselines.tags import FrequentTags
from trifold.baselines.words import WordModel
from trifold.objectives.answer import ExtractAnswers
from trifold.objectives.choose import Choose
from trifold.objectives.classify import Classify
from trifold.objectives.embed import Embed
from trifold.objectives.images import Images
from trifold.objectives.summarize import Summarize
from trifold.objectives.tag import TagWords
from trifold.objectives.write_answers import WriteAnswers

# The baselines of an objective, the simplest first; each decides whether it applies to the rows.
# A subclass stands before its base.
BASELINES: dict[type[Any], tuple[type[Baseline], ...]] = {
    Images: (FrequentLabel, PixelModel),
    Classify: (FrequentLabel, Mean, PairOverlap, WordModel),
    Embed: (SimilarWords, PairOverlap),
    TagWords: (FrequentTags, FormModel),
    Choose: (FrequentChoice, OverlappingChoice),
    ExtractAnswers: (OverlappingSentence,),
    WriteAnswers: (OverlappingSentence,),
    Summarize: (LeadSentences,),
}
KINDS: dict[str, type[Baseline]] = {
    kind.__name__: kind for kinds in BASELINES.values() for kind in kinds
}
# The most training rows and characters that a baseline is fitted on, so that it takes seconds.
MOST_ROWS = 20_000
MOST_CHARACTERS = 20_000_000
MOST_PIXELS = 2**24


def evaluated(task: Any) -> Any:
    """The objective whose scores are measured; of one that wraps another, the inner one."""
    return getattr(task, "objective", task)


def kinds_of(task: Any) -> tuple[type[Baseline], ...]:
    """The kinds of baselines of an objective; none if it has no row in the table."""
    for objective, kinds in BASELINES.items():
        if isinstance(task, objective):
            return kinds
    return ()


def fit_baselines(task: Any, rows: Any, examples: Any, poll: Poll) -> list[Baseline]:
    """The baselines of an objective, fitted on training rows; no model has seen others.

    poll: called often; it may raise to end the fit.
    """
    task = evaluated(task)
    kinds = kinds_of(task)
    if not kinds:
        return []
    labelled = _first_of(LabelledRows.of(rows, examples), _most_rows(rows))
    fitted = list[Baseline]()
    for kind in kinds:
        poll()
        start = time.perf_counter()
        baseline = kind.fit(task, labelled, poll)
        if baseline is not None:
            baseline.rows = baseline.rows or len(labelled)
            baseline.seconds = time.perf_counter() - start
            fitted.append(baseline)
    return fitted


def _first_of(labelled: LabelledRows, most: int) -> LabelledRows:
    """At most this number of rows, from all parts of the file, which may be sorted."""
    if len(labelled) <= most:
        return labelled
    return labelled.select(np.linspace(0, len(labelled) - 1, most).astype(np.int64))


def _most_rows(rows: Any) -> int:
    """The number of rows that takes seconds: fewer if they are long."""
    if "image" in rows.columns:
        return min(MOST_ROWS, MOST_PIXELS // max(1, PixelModel.size_of(rows)))
    sizes = [_mean_size(values) for values in rows.columns.values() if len(values)]
    return min(MOST_ROWS, int(MOST_CHARACTERS / max(1.0, sum(sizes))))


def _mean_size(values: Sequence[Any]) -> float:
    """The mean number of characters of some values in a column."""
    some = values[:: max(1, len(values) // 100)]
    return sum(len(value) if isinstance(value, str) else 0 for value in some) / len(some)
