"""Where a run stands: all that a checkpoint holds beside weights and moments, and how it ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trifold.train.dealing import Dealt
from trifold.train.validate import Best

StoppedBy = Literal["steps", "minutes", "patience", "signal"]


class Outcome(NamedTuple):
    """How a training ended. `scores` are the last validation's; `exit_code` is 130 or 143 after a signal."""

    folder: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    stopped_by: StoppedBy
    exit_code: int

    @property
    def finished(self) -> bool:
        return self.stopped_by != "signal"


@dataclass
class Progress:
    """The same on all ranks, but for `lines`, which rank 0 alone writes."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = 0
    best: Best = field(default_factory=Best)
    scores: dict[str, float] = field(default_factory=dict)
    lines: int = 0  # of metrics.jsonl
    refused: int = 0  # updates that were left out
    losses: list[float] = field(default_factory=list)  # with which the next is compared, where spikes matter

    @classmethod
    def read(cls, saved: dict[str, Any]) -> Progress:
        """From what `written` gave, and whatever else lies with it."""
        known = {each.name for each in fields(cls)}
        return cls(
            **{key: value for key, value in saved.items() if key in known} | {"best": Best(*saved["best"])}
        )

    def written(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def behind(dealt: list[Dealt]) -> tuple[int, int]:
    """The place in the data after these batches: epoch, and number in it."""
    return dealt[-1].epoch, dealt[-1].number + 1
