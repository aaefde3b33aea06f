"""Summarization: a text, which may be a list of sentences, and one or several reference summaries.

rows -> example    source ids, truncated, + </s>;  ids of the first reference + </s>
batch, loss        those of translation
scores             ROUGE-1, ROUGE-2 and ROUGE-L, each of the best of the references
"""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any, Literal

import numpy as np
from pydantic import Field

from trifold.data import Role, Rows, read_records
from trifold.data.roles import check_text
from trifold.errors import DataError, plural
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import BuildContext
from trifold.objectives.prompted import Prompted
from trifold.objectives.translate import SourceTargetExamples, Translate, TranslateSettings
from trifold.scores.bootstrap import Resampled, mean_scorer
from trifold.scores.rouge import RougeScore
from trifold.scripts import main_script


def _read_texts(value: Any, place: str) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise DataError(f"{place} is an empty list; remove the row")
    return [check_text(text, place).strip() for text in texts]


def _join_texts(value: Any, place: str) -> str:
    return " ".join(_read_texts(value, place))


ROLES = {
    "source": Role(("source", "document", "article", "dialogue", "text"), _join_texts),
    "target": Role(("target", "summary", "highlights"), _read_texts, identifies=False),
}


class SummaryRows(Rows):
    """Rows with a source and a list of references, of which the first one is the target."""

    @property
    def targets(self) -> list[str]:
        return [references[0] for references in self.columns["target"]]


class SummarizeSettings(TranslateSettings):
    """Settings of summarization; `data.columns` names the columns of source and target."""

    pipeline_tag = "summarization"
    default_prompt = "{source}\nTL;DR:"
    data_kind = "table"  # type: ignore[assignment]
    defaults = {  # noqa: RUF012
        "model": {"preset": "transformer-base"},
        "batch": {"on_overflow": "truncate"},
    }

    kind: Literal["summarize"] = "summarize"  # type: ignore[assignment]
    best_by: Literal["rouge1", "rouge2", "rougeL", "loss"] = "rougeL"  # type: ignore[assignment]
    max_source: int = Field(512, ge=2, description="tokens to which sources are truncated")

    def read(self, source: Any, data: Any, split: str) -> SummaryRows:
        rows = read_records(source, data, ROLES, split)
        for line, texts in zip(rows.lines, rows.columns["target"], strict=True):
            if len(texts) > 1 and not any(texts):
                raise DataError(
                    f"{rows.report.name}:{line}: all {len(texts)} references are empty; write one, "
                    "or remove the row"
                )
        empty = sum("" in texts and len(texts) > 1 for texts in rows.columns["target"])
        if empty:
            rows.report.notes.append(f"{plural(empty, 'row')} with an empty reference among others")
        return SummaryRows(**vars(rows))

    def script_note(self, rows: Any) -> str | None:
        if main_script(rows.targets) == "latin":
            return None
        return "ROUGE: Unicode words, by the script of the references"

    @property
    def prompted(self) -> type[Prompted]:
        return SummarizePrompts

    def create(self, context: BuildContext, *parts: Any, **options: Any) -> Translate:
        settings = self.model_copy(update={"max_source": min(self.max_source, context.width)})
        return Summarize(settings, *parts, **options)


class Summarize(Translate):
    """Summarization."""

    row_name = "texts"

    def encode_rows(self, rows: Any, draw: int | None = None) -> SourceTargetExamples:
        """Encode both sides; sources end with </s> after `max_source` tokens at most."""
        whole = super().encode_rows(rows, draw)
        limit = self.settings.max_source
        lengths = np.minimum(whole.sources.lengths, limit)
        if draw is None:
            self.truncation.add((whole.sources.lengths - lengths).tolist())
        sources = whole.sources.select(np.arange(len(lengths)), lengths)
        sources.ids[sources.starts[1:] - 1] = self.source.required("eos")
        return replace(whole, sources=sources)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """ROUGE of the summaries that the recipe's `generate` finds, and samples."""
        outputs = self.outputs(run, run.examples.sources, run.context.generation)
        rows = run.rows
        score = self.score(rows, outputs)
        percentages = score.percentages
        resampled = Resampled(mean_scorer(percentages), len(outputs), self.row_name)
        sources = (shorten(source, 200, placeholder=" …") for source in rows.sources)
        samples = [Sample(*each) for each in zip(sources, rows.targets, outputs, strict=True)]
        return Evaluation(score.values(), samples, [score.signature], resampled=resampled)

    def score(self, rows: Any, outputs: Sequence[str]) -> RougeScore:
        """ROUGE of summaries of the rows."""
        score = RougeScore()
        score.add(rows.columns["target"], outputs)
        return score


class SummarizePrompts(Prompted, Summarize):  # type: ignore[misc]
    """Summarization by a decoder."""
