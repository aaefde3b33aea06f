"""Lengths of rows to a seekable plan of batches."""

from trifold.batches.blocks import Blocks, ShuffledRows, Stretches
from trifold.batches.packing import Laid, lay, pack_epoch
from trifold.batches.plan import BatchSettings, deal, overlong, padding_share, plan_epoch, shares

__all__ = [
    "BatchSettings",
    "Blocks",
    "Laid",
    "ShuffledRows",
    "Stretches",
    "deal",
    "lay",
    "overlong",
    "pack_epoch",
    "padding_share",
    "plan_epoch",
    "shares",
]
