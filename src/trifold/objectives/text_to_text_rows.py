"""From a recipe to several tasks learnt as one: their rows, one tokenizer, the task."""

from __future__ import annotations

import re

import numpy as np

from trifold.data import DataSettings, read_pairs
from trifold.data.settings import Source
from trifold.errors import DataError, SettingsError
from trifold.objectives.causal_rows import with_tokens_of
from trifold.objectives.task import Asked, Material
from trifold.objectives.text_to_text import PartSettings, Rows, TextToText, TextToTextSettings, number_text
from trifold.objectives.tokenizers import tokenizer_of

_COLUMN = re.compile(r"\{([^{}]+)\}")

Texts = tuple[list[str], list[str]]


def text_to_text(settings: TextToTextSettings, asked: Asked) -> Material:
    """Read the parts, train or load the tokenizer, encode. Raises SettingsError or DataError."""
    asked.refuse_other_shapes(settings.kind, "encoder-decoder")
    if asked.data.train is not None or asked.data.valid is not None:
        raise SettingsError(
            "data.train: a text-to-text task names the data of each part: move it to task.parts.NAME.train"
        )
    train, valid = (
        {name: _read(name, part, split, asked) for name, part in settings.parts.items()}
        for split in ("train", "valid")
    )
    tokenizer = tokenizer_of(
        asked,
        lambda: [text for sides in train.values() for side in sides for text in side],
        lambda own: own.save(asked.folder, append_eos=True),
    )
    config = with_tokens_of(asked.model, tokenizer)
    task = TextToText(settings, tokenizer, start_id=config.start_id)
    rows = _rows(task, train, mixed=True)
    sizes = [end - first for _, first, end in rows.parts]
    shown = _rows(task, _short_enough(task, valid, asked), mixed=False)
    for (name, *_), size, mixed in zip(rows.parts, sizes, task.rows_an_epoch(rows), strict=True):
        asked.say(f"{name}: {size:,} rows, {mixed:,} of them an epoch")
    anew = task.rows_an_epoch(rows) != sizes
    return Material(task, config, rows, shown, f"{tokenizer.vocab_size:,}", lambda epoch: anew)


def _read(name: str, part: PartSettings, split: str, asked: Asked) -> Texts:
    """The two texts of every row that has all of its columns; the others are counted and said."""
    source: Source = getattr(part, split)
    place = f"task.parts.{name}"
    columns = _COLUMN.findall(part.input)
    if source is None or not columns:
        what = f"{split}: no data" if source is None else "input: no column stands in braces"
        raise SettingsError(f"{place}.{what}; set {place}.{split}=FILE and name columns as in '{{source}}'")
    told = {
        "target": part.target,
        "format": part.format,
        "header": part.header,
        "blank": "keep",
        "max_line_bytes": asked.data.max_line_bytes,
    }
    found = [
        read_pairs(source, DataSettings.parse({**told, "source": column}), split=split) for column in columns
    ]
    values = dict(zip(columns, (pairs.sources for pairs in found), strict=True))
    wanted = found[0].targets
    whole = [
        row
        for row, target in enumerate(wanted)
        if target.strip() and all(v[row].strip() for v in values.values())
    ]
    if len(whole) < len(wanted):
        asked.say(f"{name}: {len(wanted) - len(whole):,} of {len(wanted):,} rows with a blank text: left out")
    if not whole:
        raise DataError(f"{place}.{split}: no row is left, all {len(wanted):,} have a blank text")
    inputs = [_COLUMN.sub(lambda match, row=row: values[match[1]][row], part.input) for row in whole]  # type: ignore[misc]
    return inputs, [
        _target(wanted[row], part, f"{place}.{split}, line {found[0].lines[row]}") for row in whole
    ]


def _target(text: str, part: PartSettings, place: str) -> str:
    if part.number is None:
        return text
    try:
        return number_text(float(text), part.number)
    except (ValueError, OverflowError):
        raise DataError(
            f"{place}: {text!r} is no number, and the part says number: {part.number}; mend the row or leave number out"
        ) from None


def _rows(task: TextToText, texts: dict[str, Texts], *, mixed: bool) -> Rows:
    sources = [text for inputs, _ in texts.values() for text in inputs]
    targets = [text for _, wanted in texts.values() for text in wanted]
    ends = np.cumsum([len(inputs) for inputs, _ in texts.values()]).tolist()
    parts = list(zip(texts, [0, *ends[:-1]], ends, strict=True))
    return Rows(parts, sources, targets, task.encoded(sources, targets), mixed)


def _short_enough(task: TextToText, valid: dict[str, Texts], asked: Asked) -> dict[str, Texts]:
    """The validation rows that the model can read."""
    kept: dict[str, Texts] = {}
    for name, (sources, targets) in valid.items():
        fits = task.encoded(sources, targets).lengths.max(axis=1) <= asked.model.max_positions
        if not fits.any():
            raise DataError(
                f"task.parts.{name}.valid: no row has at most {asked.model.max_positions} tokens; "
                "raise model.max_positions"
            )
        if not fits.all():
            asked.say(f"{name}: {int((~fits).sum()):,} validation rows are too long for the model: left out")
        rows = np.flatnonzero(fits).tolist()
        kept[name] = [sources[row] for row in rows], [targets[row] for row in rows]
    return kept
