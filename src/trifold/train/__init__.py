"""Learning: the loop, schedules, precision, checkpoints, validation."""

from trifold.train.loop import Outcome, train

__all__ = ["Outcome", "train"]
