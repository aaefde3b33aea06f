"""Several tasks as one: text in, text out (Raffel et al. 2020, sections 2.4 and 3.5.2).

rows -> example    a part's template filled with its columns ("translate English to German:
                   {source}"), and its target; a number is written as text, rounded to a step
                   (STS-B: 0.2)
example -> batch   rows of all parts together, as in translation
loss               - Σ log P(y_t | y_<t, X) over the target tokens
scores             a score of each part, and their mean, for greedy outputs

Examples-proportional mixing: of a part m of size e_m, limited to K, an epoch has min(e_m, K) rows.
Temperature-scaled mixing: its share is proportional to min(e_m, K)^(1/T). Each epoch draws other
rows of a larger part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trifold.data import DataSettings, Rows, Source, read_pairs
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import BuildContext, ObjectiveSettings, TaskBundle
from trifold.objectives.prompted import (
    PROMPT,
    Prompted,
    PromptSettings,
    load_tokenizer,
)
from trifold.objectives.translate import SourceTargetExamples, Translate
from trifold.scores import SCORES
from trifold.scores.bleu import text_scorer, tokenizer_note
from trifold.scores.bootstrap import Resampled
from trifold.scores.correlation import pearson
from trifold.settings import Settings
from trifold.text.prompts import fill_template, split_template
from trifold.text.spans import Ids, example_rng

NO_NUMBER = -1.0  # value of an output that is not a number, as in the paper's code
# Rows may have more than two columns, so the keys of pairs and documents do not apply.
_PAIR_KEYS = (
    "cut",
    "documents",
    "duplicates",
    "field",
    "holdout",
    "source",
    "target",
    "format",
    "header",
)

# --- settings -> rows -----------------------------------------------------------------------------


class PartSettings(Settings):
    """One of the tasks: its data, and how a row becomes two texts."""

    train: Source = Field(description="training rows, named like pairs in data.train")
    valid: Source = Field(description="validation rows")
    input: str = Field(
        description="source template, columns in braces: 'stsb sentence1: {sentence1} …'"
    )
    target: str | int = Field("target", description="column of the target")
    number: float | None = Field(
        None, gt=0, description="a numeric target, rounded to a multiple of this"
    )
    score: Literal["exact_match", "bleu", "chrf", "pearson"] = Field(
        "exact_match", description="score of the validation rows"
    )
    format: Literal["auto", "text", "tsv", "csv", "jsonl"] = Field(
        "auto", description="like data.format"
    )
    header: bool | None = Field(None, description="like data.header")

    @model_validator(mode="after")
    def _check_score(self) -> Self:
        if self.score == "pearson" and self.number is None:
            raise ValueError("score: pearson compares numbers; set number, for example to 0.2")
        return self


class TextToTextSettings(PromptSettings):
    """Settings of several tasks as one."""

    pipeline_tag = "text2text-generation"
    data_kind = "parts"
    shapes = ("encoder-decoder", "decoder")
    default_prompt = "{source} ="
    unused_keys = (*ObjectiveSettings.unused_keys, *(f"data.{key}" for key in _PAIR_KEYS))

    kind: Literal["text-to-text"] = "text-to-text"
    parts: dict[str, PartSettings] = Field(default={}, description="the tasks, by name")
    limit: int = Field(2**19, ge=1, description="most rows that count for a part (K of the paper)")
    temperature: float = Field(
        1.0, ge=1, description="shares are proportional to size^(1 / temperature)"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    prompt: str | None = PROMPT
    best_by: Literal["mean", "loss"] = Field(
        "mean", description="what selects the best weights: the mean of the parts' scores, or loss"
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if not self.parts:
            raise ValueError("parts: no task is named; name at least one")
        if "mean" in self.parts:
            raise ValueError(
                "parts: 'mean' is the name of the mean of the scores; choose another name"
            )
        return self

    def build(self, context: BuildContext) -> TaskBundle:
        if context.data.train is not None or context.data.valid is not None:
            raise SettingsError(
                "data.train: a text-to-text task names the data of each part; move it to "
                "task.parts.NAME.train"
            )
        train, valid = (
            {name: _read_part(name, part, split, context) for name, part in self.parts.items()}
            for split in ("train", "valid")
        )
        objective, config = self._create(context, train)
        rows = objective.rows(train, mixed=True)
        for name, part in valid.items():
            examples = objective.rows({name: part}, mixed=False).examples
            valid[name] = context.select_readable(part, examples, "rows")
        sizes = [len(part) for part in train.values()]
        per_epoch = objective.rows_per_epoch(rows)
        for name, size, count in zip(train, sizes, per_epoch, strict=True):
            context.report(f"{name}: {size:,} rows, {count:,} of them in each epoch")
        for name, part in valid.items():
            if self.parts[name].score == "bleu" and (note := tokenizer_note(part.targets)):
                context.report(f"{name}: {note}")
        valid_rows = objective.rows(valid, mixed=False)
        return TaskBundle(objective, config, rows, valid_rows, lambda _epoch: per_epoch != sizes)

    def _create(
        self, context: BuildContext, train: dict[str, Rows]
    ) -> tuple[TextToText, ModelConfig]:
        """The objective, and the config of the model. A decoder learns the rows of which the
        targets fit, and `train` keeps no others.
        """
        targets = [text for part in train.values() for text in part.targets]
        sources = [text for part in train.values() for text in part.sources]
        if context.model.shape != "decoder":
            tokenizer = context.load_or_train_tokenizer(
                lambda: [*sources, *targets], append_eos=True
            )
            config = context.config_for(tokenizer)
            return TextToText(self, tokenizer, tokenizer, start_id=config.start_id), config
        tokenizer, config = load_tokenizer(
            context,
            self.chosen_prompt,
            lambda: [{"source": source} for source in sources],
            targets,
        )
        prompted = TextToTextPrompts(self, tokenizer, context.text_width)
        for name, part in train.items():
            train[name] = prompted.fitting(part, context.report)
        return prompted, config


def _read_part(name: str, part: PartSettings, split: str, context: BuildContext) -> Rows:
    """Source and target of each row that has all of its columns; the others are counted and
    reported.
    """
    source: Source = getattr(part, split)
    place = f"task.parts.{name}"
    template = split_template(part.input)
    columns = template[1::2]
    if source is None or not columns:
        problem = "input: no column in braces"
        if source is None:
            problem = f"{split}: no data"
        raise SettingsError(
            f"{place}.{problem}; set {place}.{split}=FILE, and name columns as in '{{source}}'"
        )
    settings = {
        "target": part.target,
        "format": part.format,
        "header": part.header,
        "blank": "keep",
        "max_line_bytes": context.data.max_line_bytes,
    }
    pairs_of = {
        column: read_pairs(source, DataSettings.parse({**settings, "source": column}), split=split)
        for column in columns
    }
    rows = pairs_of[columns[0]]
    needed = (rows.targets, *(pairs.sources for pairs in pairs_of.values()))
    complete = [
        row for row, texts in enumerate(zip(*needed, strict=True)) if all(map(str.strip, texts))
    ]
    if blank := len(rows) - len(complete):
        context.report(f"{name}: {blank:,} of {len(rows):,} rows with a blank text: left out")
    if not complete:
        raise DataError(f"{place}.{split}: all {len(rows):,} rows have a blank text")
    sources = [
        fill_template(template, {column: pairs.sources[row] for column, pairs in pairs_of.items()})
        for row in complete
    ]
    rows = rows.select(complete, f"{place}.{split}")
    numbered = zip(rows.targets, rows.lines, strict=True)
    targets = [_format_target(*each, part, rows.report.name) for each in numbered]
    return replace(rows, columns={"source": sources, "target": targets})


def _format_target(text: str, line: int, part: PartSettings, name: str) -> str:
    """The text of a target, rounded if it is a number. Raises DataError if it should be one."""
    if part.number is None:
        return text
    try:
        return format_number(float(text), part.number)
    except (ValueError, OverflowError):
        raise DataError(
            f"{name}, line {line}: {text!r} is not a number, but the part has number: "
            f"{part.number}; correct the row or remove number"
        ) from None


# --- examples, batches ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ConcatenatedParts:
    """The rows of all parts, concatenated. parts: name, first row and end of each. mixed: whether
    an epoch mixes the parts by their shares, or has every row once.
    """

    parts: Sequence[tuple[str, int, int]]
    sources: Sequence[str]
    targets: Sequence[str]
    examples: SourceTargetExamples
    mixed: bool


def rows_per_part(sizes: Sequence[int], limit: int, temperature: float = 1.0) -> list[int]:
    """Rows of each part in an epoch, which has Σ min(e, K) rows in total."""
    capped = np.minimum(np.array(sizes, dtype=np.float64), limit)
    shares = capped ** (1 / temperature)
    exact = capped.sum() * shares / shares.sum()
    counts = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: int(capped.sum()) - int(counts.sum())]
    counts[largest] += 1
    return [int(count) for count in counts]


class TextToText(Translate):
    """Several tasks as one."""

    row_name = "rows"

    def rows(self, parts: dict[str, Rows], *, mixed: bool) -> ConcatenatedParts:
        """The texts of all parts, encoded."""
        sources = [text for part in parts.values() for text in part.sources]
        targets = [text for part in parts.values() for text in part.targets]
        stops = np.cumsum([len(part) for part in parts.values()]).tolist()
        bounds = list(zip(parts, [0, *stops[:-1]], stops, strict=True))
        pairs = Rows({"source": sources, "target": targets}, range(1, len(sources) + 1))
        return ConcatenatedParts(bounds, sources, targets, self.encode_rows(pairs), mixed)

    def rows_per_epoch(self, rows: ConcatenatedParts) -> list[int]:
        """Rows of each part in an epoch."""
        sizes = [stop - start for _, start, stop in rows.parts]
        return rows_per_part(sizes, self.settings.limit, self.settings.temperature)

    def examples(self, rows: ConcatenatedParts, draw: int | None = None) -> SourceTargetExamples:
        if not rows.mixed:
            return rows.examples
        return rows.examples.select(self.choose_rows(rows, draw or 0))

    def choose_rows(self, rows: ConcatenatedParts, draw: int) -> Ids:
        """The share of each part: all of its rows equally often, except for a random choice that
        comes once more.
        """
        chosen = []
        counts = self.rows_per_epoch(rows)
        for number, ((_, start, stop), count) in enumerate(zip(rows.parts, counts, strict=True)):
            repeats, rest = divmod(count, stop - start)
            some = example_rng(draw, number).permutation(stop - start)[:rest]
            chosen += [np.tile(np.arange(start, stop), repeats), start + np.sort(some)]
        return np.concatenate(chosen)

    # --- scores ----------------------------------------------------------------------------------

    def compute_scores(self, run: EvalRun) -> Evaluation:
        rows: ConcatenatedParts = run.rows
        outputs = self.outputs(run, rows.examples.sources)
        scores = {}
        signatures = []
        for name, start, stop in rows.parts:
            scores[name], signature = self._score(
                name, outputs[start:stop], rows.targets[start:stop]
            )
            signatures.append(f"{name}: {signature}")
        scores["mean"] = sum(scores.values()) / len(scores)
        samples = [Sample(*each) for each in zip(rows.sources, rows.targets, outputs, strict=True)]
        # The first sample of every part, then the second of every part.
        number = np.concatenate([np.arange(stop - start) for _, start, stop in rows.parts])
        samples = [samples[row] for row in np.argsort(number, kind="stable")]
        resampled = self._resampled_parts(rows, outputs)
        return Evaluation(scores, samples, signatures, resampled=resampled)

    def _resampled_parts(self, rows: ConcatenatedParts, outputs: Sequence[str]) -> Resampled:
        """The scores of each part, and their mean, on some of the texts."""
        scorers = {
            name: self._scorer(name, outputs[start:stop], rows.targets[start:stop])
            for name, start, stop in rows.parts
        }

        def scores(drawn: Ids) -> dict[str, float]:
            values = {}
            for name, start, stop in rows.parts:
                of_part = drawn[(drawn >= start) & (drawn < stop)] - start
                values[name] = math.nan
                if len(of_part):
                    values[name] = scorers[name](of_part)
            return values | {"mean": sum(values.values()) / len(values)}

        return Resampled(scores, len(outputs), self.row_name)

    def _scorer(
        self, name: str, ours: Sequence[str], targets: Sequence[str]
    ) -> Callable[[Ids], float]:
        """The score of a part for some of its texts."""
        kind = self.settings.parts[name].score
        if kind != "pearson":
            scorer = text_scorer(kind, ours, targets)
            return lambda rows: scorer(rows)[kind]
        numbers, labels = (np.array([parse_number(text) for text in of]) for of in (ours, targets))
        return lambda rows: 100 * pearson(numbers[rows], labels[rows])

    def _score(self, name: str, ours: Sequence[str], targets: Sequence[str]) -> tuple[float, str]:
        kind = self.settings.parts[name].score
        if kind == "pearson":
            numbers, labels = (
                np.array([parse_number(text) for text in texts]) for texts in (ours, targets)
            )
            value = 100 * pearson(numbers, labels)
            wrong = np.count_nonzero(numbers == NO_NUMBER)
            return value, f"Pearson {value:.2f} ({wrong} of {len(ours)} outputs are not a number)"
        score = SCORES[kind](ours, targets)
        return score.value, str(score)


class TextToTextPrompts(Prompted, TextToText):  # type: ignore[misc]
    """Several tasks of a decoder."""


# --- numbers as text ------------------------------------------------------------------------------


def format_number(value: float, step: float) -> str:
    """The nearest multiple of `step`, with as many decimals as the step: 2.57 -> "2.6"."""
    decimals = len(f"{step:.10f}".rstrip("0").partition(".")[2])
    return f"{round(value / step) * step:.{decimals}f}"


def parse_number(text: str) -> float:
    """The value of a text, or NO_NUMBER."""
    with suppress(ValueError):
        value = float(text.strip())
        if np.isfinite(value):
            return value
    return NO_NUMBER
