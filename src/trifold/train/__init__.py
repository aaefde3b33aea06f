"""Training: the loop, optimizers, schedules, precision, distribution, checkpoints, validation."""

from trifold.train.loop import train
from trifold.train.monitor import Outcome

__all__ = ["Outcome", "train"]
