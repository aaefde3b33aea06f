"""Learning: the loop, schedules, precision, checkpoints, validation."""

from trifold.train.loop import train
from trifold.train.progress import Outcome

__all__ = ["Outcome", "train"]
