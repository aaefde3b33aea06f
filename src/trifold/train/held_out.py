"""What a fold predicts for its held-out rows, in a file for each validation: from these files the
steps are chosen, and the scores of all folds together are computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from trifold import disk
from trifold.baselines.comparison import MeasuredBaselines
from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath
from trifold.hub.tensors import TensorFile
from trifold.objectives.evaluation import Balance, Evaluation

FACTS = "facts"  # the tensor with the scores and names, as JSON
OF_BASELINE = "baseline."
OF_PART = "part."
COLUMNS = ("labels", "logits")  # the statistics of the rows that all files have
DERIVED = ("outputs", "confidences")  # which follow from the logits


@dataclass(frozen=True)
class HeldOut:
    """A validation of a fold.

    value: what is larger for better weights. needed_share: of the loss before the first step, that
    training must get below. names: of the classes. lines (N,): of the rows in
    their file. labels, logits: of each row. parts: other predictions for the rows, by the name of
    the part of the model. baselines: the predictions of each baseline, by the name of its class.
    """

    step: int
    value: float
    loss: float
    scores: Mapping[str, float]
    balance: Balance | None
    needed_share: float
    names: Sequence[str]
    lines: NDArray[np.int64]
    labels: NDArray[Any]
    logits: NDArray[np.float32]
    parts: Mapping[str, NDArray[Any]]
    baselines: Mapping[str, NDArray[Any]]

    @classmethod
    def of(
        cls, step: int, objective: Any, rows: Any, result: Evaluation, baselines: MeasuredBaselines
    ) -> HeldOut:
        """The validation of a step on rows."""
        assert result.resampled is not None, "the scores are those of rows"
        columns = result.resampled.columns
        labels, logits = (columns[name] for name in COLUMNS)
        kept = {*COLUMNS, *DERIVED}
        both = zip(baselines.fitted, baselines.predictions, strict=True)
        return cls(
            step,
            result.value,
            result.loss,
            result.scores,
            result.balance,
            objective.needed_share,
            [*objective.numbers],
            np.array(rows.lines, dtype=np.int64),
            labels,
            logits,
            {name: column for name, column in columns.items() if name not in kept},
            {type(baseline).__name__: outputs for baseline, outputs in both},
        )

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError."""
        facts = {
            "step": self.step,
            "value": self.value,
            "loss": self.loss,
            "scores": dict(self.scores),
            "balance": self.balance,
            "needed_share": self.needed_share,
            "names": list(self.names),
        }
        arrays = {"lines": self.lines, "labels": self.labels, "logits": self.logits}
        arrays |= {f"{OF_PART}{name}": outputs for name, outputs in self.parts.items()}
        arrays |= {f"{OF_BASELINE}{name}": outputs for name, outputs in self.baselines.items()}
        arrays[FACTS] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        disk.make_folder(path.parent)
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        disk.replace_bytes(path, save(tensors))

    @classmethod
    def read(cls, path: UntrustedPath) -> HeldOut:
        """The validation in a file. Raises CheckpointError for a damaged one."""
        file = TensorFile(path)
        try:
            arrays = {name: file[name].numpy() for name in file}
            facts = json.loads(arrays[FACTS].tobytes())
            balance = facts["balance"]
            return cls(
                int(facts["step"]),
                float(facts["value"]),
                float(facts["loss"]),
                {str(name): float(value) for name, value in facts["scores"].items()},
                None if balance is None else Balance(*balance),
                float(facts.get("needed_share", 1.0)),  # earlier files have none
                [*map(str, facts["names"])],
                arrays["lines"],
                arrays["labels"],
                arrays["logits"],
                _beginning_with(OF_PART, arrays),
                _beginning_with(OF_BASELINE, arrays),
            )
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: is no file of held-out rows ({error}); train again in another --out"
            ) from None


def _beginning_with(start: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin so, by the rest of the name."""
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }
