"""Several tasks as one: text in, text out (Raffel et al. 2020, sections 2.4 and 3.5.2).

rows -> example    a part's template filled with its columns ("translate English to German: {source}"), and its target;
                   a number is written as text, rounded to a step (STS-B: 0.2)
example -> batch   rows of all parts together, as in translation
loss               - Σ log P(y_t | y_<t, X) over the target tokens
scores             a score of each part, and their mean, for greedy outputs

The mixture follows the sizes e of the parts, limited to K: an epoch has min(e_m, K) rows of part m or, with
temperature T, a share proportional to min(e_m, K)^(1/T). Each epoch draws other rows of a larger part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trifold.data import DataSettings, Source, read_pairs
from trifold.errors import DataError, SettingsError
from trifold.generate import GenerationConfig
from trifold.nn import Transformer
from trifold.objectives.objective import (
    UNUSED_KEYS,
    BuildContext,
    EvalRun,
    LossTerm,
    Objective,
    ObjectiveSettings,
    Sample,
    Scores,
    TaskBundle,
)
from trifold.objectives.translate import Batch, Examples, Translate, with_end
from trifold.predict.generate_texts import generate_rows
from trifold.scores import SCORES
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.spans import Ids, example_rng

NO_NUMBER = -1.0  # value of an output that is not a number, as in the paper's code
_COLUMN = re.compile(r"\{([^{}]+)\}")
# Rows may have more than two columns, so the keys of pairs and documents do not apply.
_PAIR_KEYS = ("cut", "documents", "duplicates", "field", "holdout", "source", "target", "format", "header")

Texts = tuple[list[str], list[str]]  # sources and targets

# --- settings -> rows ------------------------------------------------------------------------------------


class PartSettings(Settings):
    """One of the tasks: its data, and how a row becomes two texts."""

    train: Source = Field(description="training rows, named like pairs in data.train")
    valid: Source = Field(description="validation rows")
    input: str = Field(
        description="template of the source, with columns in braces: 'stsb sentence1: {sentence1} …'"
    )
    target: str | int = Field("target", description="column of the target")
    number: float | None = Field(
        None, gt=0, description="the target is a number, rounded to a multiple of this"
    )
    score: Literal["exact_match", "bleu", "chrf", "pearson"] = Field(
        "exact_match", description="score of the validation rows"
    )
    format: Literal["auto", "text", "tsv", "csv", "jsonl"] = Field("auto", description="like data.format")
    header: bool | None = Field(None, description="like data.header")

    @model_validator(mode="after")
    def _check_score(self) -> Self:
        if self.score == "pearson" and self.number is None:
            raise ValueError("score: pearson compares numbers; set number, for example to 0.2")
        return self


class TextToTextSettings(ObjectiveSettings):
    """Settings of several tasks as one."""

    data_kind = "parts"
    unused_keys = (*UNUSED_KEYS, *(f"data.{key}" for key in _PAIR_KEYS))

    kind: Literal["text-to-text"] = "text-to-text"
    parts: dict[str, PartSettings] = Field(default={}, description="the tasks, by name")
    limit: int = Field(
        2**19, ge=1, description="largest number of rows that counts for a part (K of the paper)"
    )
    temperature: float = Field(
        1.0, ge=1, description="shares are proportional to sizes to the power of 1 / temperature"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    best_by: Literal["mean", "loss"] = Field(
        "mean", description="what selects the best weights: the mean of the parts' scores, or loss"
    )

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if not self.parts:
            raise ValueError("parts: no task is named; name at least one")
        if "mean" in self.parts:
            raise ValueError("parts: 'mean' is the name of the mean of the scores; choose another name")
        return self

    def _build(self, context: BuildContext) -> TaskBundle:
        context.require_shape(self.kind, "encoder-decoder")
        if context.data.train is not None or context.data.valid is not None:
            raise SettingsError(
                "data.train: a text-to-text task names the data of each part; move it to task.parts.NAME.train"
            )
        train = {name: _read_part(name, part, "train", context) for name, part in self.parts.items()}
        valid = {name: _read_part(name, part, "valid", context) for name, part in self.parts.items()}
        tokenizer = context.load_or_train_tokenizer(
            lambda: [text for sides in train.values() for side in sides for text in side], append_eos=True
        )
        config = context.config_for(tokenizer)
        objective = TextToText(self, tokenizer, start_id=config.start_id)
        rows = objective.rows(train, mixed=True)
        sizes = [stop - start for _, start, stop in rows.parts]
        valid_rows = objective.rows(_select_readable(objective, valid, context), mixed=False)
        per_epoch = objective.rows_per_epoch(rows)
        for (name, *_), size, count in zip(rows.parts, sizes, per_epoch, strict=True):
            context.report(f"{name}: {size:,} rows, {count:,} of them in each epoch")
        return TaskBundle(objective, config, rows, valid_rows, lambda _epoch: per_epoch != sizes)


def _read_part(name: str, part: PartSettings, split: str, context: BuildContext) -> Texts:
    """Source and target of each row that has all of its columns; the others are counted and reported."""
    source: Source = getattr(part, split)
    place = f"task.parts.{name}"
    columns = _COLUMN.findall(part.input)
    if source is None or not columns:
        what = f"{split}: no data" if source is None else "input: no column in braces"
        raise SettingsError(f"{place}.{what}; set {place}.{split}=FILE, and name columns as in '{{source}}'")
    settings = {
        "target": part.target,
        "format": part.format,
        "header": part.header,
        "blank": "keep",
        "max_line_bytes": context.data.max_line_bytes,
    }
    found = [
        read_pairs(source, DataSettings.parse({**settings, "source": column}), split=split)
        for column in columns
    ]
    values = dict(zip(columns, (pairs.sources for pairs in found), strict=True))
    targets = found[0].targets
    complete = [
        row
        for row, target in enumerate(targets)
        if target.strip() and all(column[row].strip() for column in values.values())
    ]
    if blank := len(targets) - len(complete):
        context.report(f"{name}: {blank:,} of {len(targets):,} rows with a blank text: left out")
    if not complete:
        raise DataError(f"{place}.{split}: all {len(targets):,} rows have a blank text")
    sources = [
        _COLUMN.sub(lambda match, row=row: values[match[1]][row], part.input)  # type: ignore[misc]
        for row in complete
    ]
    lines = found[0].lines
    return sources, [
        _format_target(targets[row], part, f"{place}.{split}, line {lines[row]}") for row in complete
    ]


def _format_target(text: str, part: PartSettings, place: str) -> str:
    if part.number is None:
        return text
    try:
        return format_number(float(text), part.number)
    except (ValueError, OverflowError):
        raise DataError(
            f"{place}: {text!r} is not a number, but the part has number: {part.number}; correct the row or remove "
            "number"
        ) from None


def _select_readable(
    objective: TextToText, texts: dict[str, Texts], context: BuildContext
) -> dict[str, Texts]:
    """The validation rows that fit the model's positions."""
    kept: dict[str, Texts] = {}
    for name, (sources, targets) in texts.items():
        fits = objective.encode(sources, targets).lengths.max(axis=1) <= context.model.max_positions
        if not fits.any():
            raise DataError(
                f"task.parts.{name}.valid: no row has at most {context.model.max_positions} tokens; "
                "raise model.max_positions"
            )
        if not fits.all():
            context.report(
                f"{name}: {int((~fits).sum()):,} validation rows are too long for the model: left out"
            )
        rows = np.flatnonzero(fits).tolist()
        kept[name] = [sources[row] for row in rows], [targets[row] for row in rows]
    return kept


# --- examples, batches -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The rows of all parts, concatenated. parts: name, first row and end of each. mixed: whether an epoch mixes the
    parts by their shares, or has every row once.
    """

    parts: Sequence[tuple[str, int, int]]
    sources: Sequence[str]
    targets: Sequence[str]
    examples: Examples
    mixed: bool


@dataclass(frozen=True)
class Mixture:
    """Examples: the chosen rows of an epoch."""

    rows: Rows
    chosen: Ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens of source and target, including </s>."""
        return self.rows.examples.lengths[self.chosen]


def rows_per_part(sizes: Sequence[int], limit: int, temperature: float = 1.0) -> list[int]:
    """Rows of each part in an epoch, which has Σ min(e, K) rows in total."""
    capped = np.minimum(np.array(sizes, dtype=np.float64), limit)
    shares = capped ** (1 / temperature)
    exact = capped.sum() * shares / shares.sum()
    counts = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: int(capped.sum()) - int(counts.sum())]
    counts[largest] += 1
    return [int(count) for count in counts]


class TextToText(Objective):
    """Several tasks as one. start_id: first token of the decoder."""

    row_name, read_name, token_name = "rows", "target tokens", "target tokens"
    save_options = {"append_eos": True}  # noqa: RUF012

    def __init__(self, settings: TextToTextSettings, tokenizer: Tokenizer, *, start_id: int) -> None:
        self.settings: TextToTextSettings = settings
        self.tokenizer = tokenizer
        self._translate = Translate(settings, tokenizer, tokenizer, start_id=start_id)

    def encode(self, sources: Sequence[str], targets: Sequence[str]) -> Examples:
        """Both sides as tokens, each with </s>."""
        return Examples(
            *(with_end(self.tokenizer, self.tokenizer.encode(side)) for side in (sources, targets))
        )

    def rows(self, texts: dict[str, Texts], *, mixed: bool) -> Rows:
        """The texts of all parts, encoded."""
        sources = [text for side, _ in texts.values() for text in side]
        targets = [text for _, side in texts.values() for text in side]
        stops = np.cumsum([len(side) for side, _ in texts.values()]).tolist()
        parts = list(zip(texts, [0, *stops[:-1]], stops, strict=True))
        return Rows(parts, sources, targets, self.encode(sources, targets), mixed)

    def rows_per_epoch(self, rows: Rows) -> list[int]:
        """Rows of each part in an epoch."""
        sizes = [stop - start for _, start, stop in rows.parts]
        return rows_per_part(sizes, self.settings.limit, self.settings.temperature)

    def examples(self, rows: Rows, draw: int | None = None) -> Mixture:
        """The share of each part: all of its rows equally often, except for a random choice that comes once more."""
        if not rows.mixed:
            return Mixture(rows, np.arange(len(rows.sources)))
        chosen = []
        for number, ((_, start, stop), count) in enumerate(
            zip(rows.parts, self.rows_per_epoch(rows), strict=True)
        ):
            repeats, rest = divmod(count, stop - start)
            some = example_rng(draw or 0, number).permutation(stop - start)[:rest]
            chosen += [np.tile(np.arange(start, stop), repeats), start + np.sort(some)]
        return Mixture(rows, np.concatenate(chosen))

    def batch(
        self, examples: Mixture, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the given rows, truncated to `width` tokens if given. Not random."""
        return self._translate.batch(examples.rows.examples, examples.chosen[rows], width)

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        """Cross-entropy over the target tokens, in nats."""
        return self._translate.loss(model, batch)

    # --- scores ----------------------------------------------------------------------------------

    def compute_scores(self, run: EvalRun) -> Scores:
        """The score of each part's greedy outputs, and their mean."""
        rows, context = run.rows, run.context
        greedy = GenerationConfig(max_new_tokens=context.generation.max_new_tokens)
        found = generate_rows(
            run.model, rows.examples.sources, greedy, codec=self.tokenizer, poll=context.poll
        )
        outputs = self.tokenizer.decode([best[0].tokens for best in found])
        scores, signatures = {}, []
        for name, start, stop in rows.parts:
            scores[name], signature = self._score(name, outputs[start:stop], rows.targets[start:stop])
            signatures.append(f"{name}: {signature}")
        scores["mean"] = sum(scores.values()) / len(scores)
        samples = [Sample(*each) for each in zip(rows.sources, rows.targets, outputs, strict=True)]
        # The first sample of every part, then the second of every part.
        place = np.concatenate([np.arange(stop - start) for _, start, stop in rows.parts])
        return Scores(scores, [samples[row] for row in np.argsort(place, kind="stable")], signatures)

    def _score(self, name: str, ours: Sequence[str], targets: Sequence[str]) -> tuple[float, str]:
        kind = self.settings.parts[name].score
        if kind == "pearson":
            numbers = [parse_number(text) for text in ours]
            value = pearson(numbers, [parse_number(text) for text in targets])
            return (
                value,
                f"Pearson {value:.2f} ({numbers.count(NO_NUMBER)} of {len(ours)} outputs are not a number)",
            )
        score = SCORES[kind](ours, targets)
        return score.value, str(score)


# --- numbers as text -------------------------------------------------------------------------------------


def format_number(value: float, step: float) -> str:
    """The nearest multiple of `step`, with as many decimals as the step: 2.57 -> "2.6"."""
    decimals = len(f"{step:.10f}".rstrip("0").partition(".")[2])
    return f"{round(value / step) * step:.{decimals}f}"


def parse_number(text: str) -> float:
    """The value of a text, or NO_NUMBER."""
    try:
        value = float(text.strip())
    except ValueError:
        return NO_NUMBER
    return value if np.isfinite(value) else NO_NUMBER


def pearson(ours: Sequence[float], targets: Sequence[float]) -> float:
    """Pearson correlation in percent; 0 if one side is constant."""
    a, b = np.array(ours) - np.mean(ours), np.array(targets) - np.mean(targets)
    size = float(np.sqrt((a @ a) * (b @ b)))
    return 100 * float(a @ b) / size if size > 0 else 0.0
