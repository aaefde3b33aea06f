"""Lengths of rows to a seekable plan of batches, and batches to ranks."""

import sys
from typing import TYPE_CHECKING

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
from trifold.deprecated import renamed

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

if not TYPE_CHECKING:

    def __getattr__(name):
        return renamed(sys.modules[__name__], __name__, name)
