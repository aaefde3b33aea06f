"""Pairs of texts as training data: reading, and the choice of validation rows."""

from __future__ import annotations

import numpy as np

from trifold.data import Pairs, read_splits
from trifold.errors import DataError
from trifold.objectives.objective import BuildContext, Examples


def load_pairs(context: BuildContext, train_remedy: str, valid_remedy: str) -> tuple[Pairs, Pairs]:
    """Training and validation pairs. Raises SettingsError with a remedy if the recipe names none."""
    context.require_data(train_remedy, valid_remedy)
    splits = read_splits(context.data, context.seed)
    assert splits.valid is not None
    for pairs in (splits.train, splits.valid):
        context.report(str(pairs.report))
    return splits.train, splits.valid


def select_readable(
    rows: Pairs, examples: Examples, context: BuildContext, noun: str, remedy: str = ""
) -> Pairs:
    """The validation rows whose examples fit the model's positions. Reports how many are left out."""
    positions, name = context.model.max_positions, rows.report.name
    fits = examples.lengths.max(axis=1) <= positions
    if fits.all():
        return rows
    if not fits.any():
        raise DataError(
            f"{name}: no validation row has at most {positions} tokens; raise model.max_positions{remedy}"
        )
    context.report(
        f"{name}: {int((~fits).sum()):,} of {len(fits):,} {noun} are longer than {positions} tokens: left out"
    )
    return rows.select(np.flatnonzero(fits).tolist(), name)
