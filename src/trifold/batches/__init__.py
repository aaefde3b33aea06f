"""Lengths of rows to a seekable plan of batches."""

from trifold.batches.blocks import Blocks, ShuffledRows, Stretches
from trifold.batches.plan import BatchSettings, deal, overlong, padding_share, plan_epoch, shares

__all__ = [
    "BatchSettings",
    "Blocks",
    "ShuffledRows",
    "Stretches",
    "deal",
    "overlong",
    "padding_share",
    "plan_epoch",
    "shares",
]
