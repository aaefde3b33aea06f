"""GLUE (Wang et al. 2019): its nine tasks, their scores, and how they are averaged.

The score of a task is the mean of its scores, and the total the mean of the nine tasks, each with
the same weight. Correlations are multiplied by 100. The diagnostic set AX is not part of the total.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class GlueTask(NamedTuple):
    """The scores of a task. second: a second set with the same scores, or nothing."""

    scores: Sequence[str]
    second: str = ""


TASKS = {
    "cola": GlueTask(("matthews",)),
    "sst2": GlueTask(("accuracy",)),
    "mrpc": GlueTask(("accuracy", "f1")),
    "stsb": GlueTask(("pearson", "spearman")),
    "qqp": GlueTask(("accuracy", "f1")),
    "mnli": GlueTask(("accuracy",), second="${TRIFOLD_DATA}/mnli/dev_mismatched.tsv"),
    "qnli": GlueTask(("accuracy",)),
    "rte": GlueTask(("accuracy",)),
    "wnli": GlueTask(("accuracy",)),
}
CORRELATIONS = ("matthews", "pearson", "spearman")  # between -1 and 1


def task_scores(task: str, measured: Mapping[str, float]) -> dict[str, float]:
    """The scores that GLUE reports of a task, in percent."""
    return {
        name: 100 * measured[name] if name in CORRELATIONS else measured[name]
        for name in TASKS[task].scores
    }


def mean(values: Sequence[float]) -> float:
    """The mean of scores of a task, or of tasks."""
    return sum(values) / len(values)
