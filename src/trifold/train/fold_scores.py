"""The scores of folds: each of their rows is scored by the model that has not seen it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trifold import disk
from trifold.baselines.baseline import Baseline, LabelledRows
from trifold.baselines.comparison import MeasuredBaselines
from trifold.baselines.scoring import Scored, score
from trifold.errors import CheckpointError, DataError
from trifold.jsonfiles import read_json
from trifold.objectives.evaluation import PATH_LOGITS, Balance, Evaluation
from trifold.predict.classify import choose_labels
from trifold.train.data import TrainingData
from trifold.train.held_out import HeldOut
from trifold.train.monitor import FoldScores
from trifold.train.run_folder import FOLDS, RunFolder

CHOICE = "choice.json"  # in the folder of the folds: the steps that they have chosen


def fold_path(folder: RunFolder, number: int) -> Path:
    """The folder of a fold."""
    return folder.path / FOLDS / f"fold-{number}"


@dataclass(frozen=True)
class Choice:
    """The number of steps of a fold, the chosen one, and the steps that all folds validated."""

    steps: int
    step: int
    validated: tuple[int, ...]

    @classmethod
    def read(cls, folder: RunFolder) -> Choice:
        """The choice of the folds of a run. Raises CheckpointError if it is damaged."""
        path = folder.path / FOLDS / CHOICE
        try:
            values = read_json(folder.below(path))
            validated = tuple(map(int, values["validated"]))
            return cls(int(values["steps"]), int(values["step"]), validated)
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: missing or damaged ({error}); train again in another --out"
            ) from None

    def write(self, folder: RunFolder) -> None:
        """Write the choice into the folder of the folds. Raises OSError."""
        disk.replace_text(folder.path / FOLDS / CHOICE, json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True)
class JoinedFolds:
    """The validations of folds after the same steps. parts: how many folds the rows have."""

    folds: tuple[HeldOut, ...]
    parts: int

    @classmethod
    def read(
        cls, folder: RunFolder, count: int, step: int, parts: int | None = None
    ) -> JoinedFolds:
        """The validations in the files of the first folds; by default, the rows have no others."""
        folds = [RunFolder(fold_path(folder, number)) for number in range(1, count + 1)]
        read = tuple(HeldOut.read(fold.below(fold.held_out(step))) for fold in folds)
        if any(fold.names != read[0].names for fold in read):
            raise DataError(
                f"{folder.path / FOLDS}: the folds have different labels, because the data has "
                "changed; train again in another --out"
            )
        return cls(read, parts or count)

    @property
    def value(self) -> float:
        """The mean of what is larger for better weights."""
        return mean(fold.value for fold in self.folds)

    @property
    def loss(self) -> float:
        return mean(fold.loss for fold in self.folds)

    @property
    def loss_to_reach(self) -> float:
        """The loss that training must get below, where these are the validations before the first
        step.
        """
        return self.loss * self.folds[0].needed_share

    @property
    def balance(self) -> Balance | None:
        """The mean score with the same weight for all classes, and the answer of a model that gives
        all rows of all folds the same.
        """
        balances = [fold.balance for fold in self.folds if fold.balance is not None]
        if len(balances) < len(self.folds):
            return None
        answers = {balance.answer for balance in balances}
        answer = answers.pop() if len(answers) == 1 else None
        return Balance(mean(balance.score for balance in balances), answer)

    @cached_property
    def facts(self) -> FoldScores:
        """The scores, which all folds have."""
        names = [
            name for name in self.folds[0].scores if all(name in fold.scores for fold in self.folds)
        ]
        values = {name: [fold.scores[name] for fold in self.folds] for name in names}
        return FoldScores(
            len(self.folds),
            {name: mean(scores) for name, scores in values.items()},
            {name: stdev(scores) for name, scores in values.items() if len(scores) > 1},
            self.parts,
        )

    def labels(self) -> NDArray[Any]:
        """(N, …) the labels of the rows of the folds."""
        return np.concatenate([fold.labels for fold in self.folds])

    def evaluation(self, task: Any) -> Evaluation:
        """The scores of these rows together, by the outputs of the models that have not seen them;
        thresholds are chosen on all of them.
        """
        labels = self.labels()
        logits = np.concatenate([fold.logits for fold in self.folds])
        parts = self._parts(task, labels, logits)
        shift = task.choose_shift({"labels": [labels], "logits": [logits]})
        if shift is not None:
            logits = logits + shift
        outputs = choose_labels(torch.from_numpy(logits), task.config).numpy()
        scored = _score(task, labels, outputs)
        return Evaluation(
            scored.scores,
            resampled=scored.resampled,
            loss=self.loss,
            value=self.value,
            balance=self.balance,
            shift=shift,
            parts=parts,
        )

    def _parts(
        self, task: Any, labels: NDArray[Any], logits: NDArray[np.float32]
    ) -> Mapping[str, Mapping[str, float]]:
        """The scores of parts of the models alone; none of models without a linear path."""
        of_path = [fold.parts[PATH_LOGITS] for fold in self.folds if PATH_LOGITS in fold.parts]
        if len(of_path) < len(self.folds):
            return {}
        sums = {"labels": [labels], "logits": [logits], PATH_LOGITS: of_path}
        scores: Mapping[str, Mapping[str, float]] = task.part_scores(sums)
        return scores

    def baselines(self, task: Any, fitted: list[Baseline]) -> MeasuredBaselines:
        """Baselines of these rows, measured by those of the folds."""
        kept = [
            baseline
            for baseline in fitted
            if all(type(baseline).__name__ in fold.baselines for fold in self.folds)
        ]
        measured = MeasuredBaselines(task, kept)
        for baseline in kept:
            name = type(baseline).__name__
            outputs = np.concatenate([fold.baselines[name] for fold in self.folds])
            measured.add(_score(task, self.labels(), outputs), outputs)
        return measured


def _score(task: Any, labels: NDArray[Any], outputs: NDArray[Any]) -> Scored:
    """The scores of outputs for rows with these labels."""
    return score(task, LabelledRows(None, labels), outputs)


class FoldedEvaluation:
    """What the run on all rows reports instead of a validation."""

    def __init__(self, data: TrainingData, folder: RunFolder) -> None:
        self.data = data
        self.folder = folder
        self.choice = Choice.read(folder)

    def at(self, step: int) -> JoinedFolds:
        """The folds after the same share of the steps, or the nearest validated one."""
        share = step / self.data.recipe.train.steps
        steps = self.choice.steps
        nearest = min(self.choice.validated, key=lambda own: abs(own / steps - share))
        data = self.data.recipe.data
        return JoinedFolds.read(self.folder, data.folds or 0, nearest, data.fold_parts)
