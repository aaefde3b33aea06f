"""Training: the loop, optimizers, schedules, precision, distribution, checkpoints, validation."""

from trifold.train.loop import train
from trifold.train.monitor import Outcome, View

__all__ = ["Outcome", "View", "train"]
