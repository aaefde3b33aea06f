"""Lengths of rows to a seekable plan of batches, and batches to ranks."""

from trifold.batches.blocks import Blocks, ShuffledRows
from trifold.batches.plan import (
    BatchSettings,
    Share,
    deal_batch,
    overlong,
    padding_share,
    plan_epoch,
    split_batch,
)

__all__ = [
    "BatchSettings",
    "Blocks",
    "Share",
    "ShuffledRows",
    "deal_batch",
    "overlong",
    "padding_share",
    "plan_epoch",
    "split_batch",
]
