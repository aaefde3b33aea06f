"""From a recipe to texts with labels: its pairs, its tokenizer, its task."""

from __future__ import annotations

import numpy as np

from trifold.data import Pairs, read_splits
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.causal_rows import with_tokens_of
from trifold.objectives.classify import Classify, ClassifySettings, in_order
from trifold.objectives.task import Asked, Material, Say
from trifold.objectives.tokenizers import tokenizer_of


def classification(settings: ClassifySettings, asked: Asked) -> Material:
    """Read texts and labels, train or load the tokenizer. Raises SettingsError or DataError."""
    if asked.model.shape == "encoder-decoder":
        raise SettingsError(
            "model.shape: encoder-decoder does not go with task.kind: classify, which learns from one stack; "
            "set model.shape=encoder or decoder"
        )
    if asked.data.train is None:
        raise SettingsError(
            "data.train: no training data; set data.train=FILE (.tsv, .csv or .jsonl), and data.source and data.target "
            "to its columns of texts and labels"
        )
    if asked.data.valid is None and not asked.data.holdout:
        raise SettingsError(
            "data.valid: no validation data; set data.valid=…, or data.holdout=0.1 to hold a tenth out"
        )
    splits = read_splits(asked.data, asked.seed)
    assert splits.valid is not None
    for rows in (splits.train, splits.valid):
        asked.say(str(rows.report))
    tokenizer = tokenizer_of(asked, lambda: splits.train.sources, lambda own: own.save(asked.folder))
    config = with_tokens_of(_with_labels(asked.model, splits.train), tokenizer)
    asked.say(f"labels: {', '.join(config.labels)}")
    cuts = asked.batches.on_overflow == "truncate"
    task = Classify(settings, tokenizer, config, asked.width if cuts else None, asked.say)
    valid = splits.valid if cuts else _short_enough(splits.valid, task, config.max_positions, asked.say)
    return Material(task, config, splits.train, valid, f"{tokenizer.vocab_size:,}")


def _with_labels(config: ModelConfig, rows: Pairs) -> ModelConfig:
    """The config with the labels of the rows, where it does not name them already."""
    if config.problem_type in ("regression", "multi_label_classification"):
        raise SettingsError(
            f"model.problem_type: {config.problem_type} does not go with task.kind: classify, which tells one class "
            "of several; leave it out"
        )
    found = in_order(rows.targets)
    if config.label_names is not None or set(found) <= set(config.labels):
        return config
    if len(found) < 2:
        raise DataError(
            f"{rows.report.name}: the only label is {found[0]!r}, and a class is told from others; is data.target "
            "the column of the labels?"
        )
    return config.model_copy(update={"n_labels": len(found), "label_names": found})


def _short_enough(rows: Pairs, task: Classify, positions: int, say: Say) -> Pairs:
    """The validation texts that the model can read; found out, and said, before hours of training."""
    fits = task.examples(rows).lengths[:, 0] <= positions
    if fits.all():
        return rows
    name = rows.report.name
    if not fits.any():
        raise DataError(
            f"{name}: no validation text has at most {positions} tokens; raise model.max_positions, or set "
            "batch.on_overflow=truncate"
        )
    say(f"{name}: {int((~fits).sum()):,} of {len(fits):,} texts are longer than {positions} tokens: left out")
    return rows.select(np.flatnonzero(fits).tolist(), name)
