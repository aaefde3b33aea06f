"""`trifold eval --report`: the worst mistakes, the confusion matrix and the calibration, as tables
and pictures.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trifold import disk
from trifold.cli.batch import one_line
from trifold.look import plots
from trifold.nn.config import REGRESSION, SINGLE
from trifold.scores.classification import BINS, ClassificationScore

MOST = 50  # mistakes


def write_report(folder: Path, task: Any, rows: Any, found: Any) -> None:
    """Write mistakes.tsv; of a classification with one label also confusion and calibration (.tsv,
    .png).

    task, rows, found: an objective, its rows, and their `Evaluation` with a sample of each row.
    Raises TrifoldError without matplotlib.
    """
    plots.check_picture(folder / "confusion.png")
    disk.make_folder(folder)
    problem = getattr(task, "problem", None)
    both = zip(found.confidences, rows.lines, found.samples, strict=False)
    wrong = [(sure, line, each) for sure, line, each in both if each.reference != each.ours]
    if problem == REGRESSION:
        wrong = [
            (abs(float(each.reference) - float(each.ours)), line, each) for _, line, each in wrong
        ]
    wrong.sort(key=lambda mistake: -mistake[0])
    table = [(rows.report.name, line, *each, f"{sure:.4f}") for sure, line, each in wrong[:MOST]]
    last = "error" if problem == REGRESSION else "probability"
    _write(
        folder / "mistakes.tsv", [("file", "line", "text", "expected", "predicted", last), *table]
    )
    if problem != SINGLE:
        return
    names = [*task.numbers]
    score = ClassificationScore(len(task.numbers))
    expected, predicted = (
        [task.numbers[each[place]] for each in found.samples] for place in (1, 2)
    )
    score.add(expected, predicted, found.confidences)
    counts = zip(names, score.table.tolist(), strict=True)
    _write(
        folder / "confusion.tsv", [("expected", *names), *((name, *row) for name, row in counts)]
    )
    bins = [(place / BINS, *row) for place, row in enumerate(score.reliability.tolist()) if row[0]]
    means = [
        (f"{low:.3f}", int(n), f"{sure / n:.4f}", f"{right / n:.4f}")
        for low, n, sure, right in bins
    ]
    _write(folder / "calibration.tsv", [("from", "count", "confidence", "accuracy"), *means])
    figures = [plots.new_figure(5, 5) for _ in range(2)]
    plots.draw_confusion(figures[0].subplots(), score.table, names)
    plots.draw_calibration(figures[1].subplots(), score.reliability)
    for name, figure in zip(("confusion", "calibration"), figures, strict=True):
        plots.save_figure(figure, folder / f"{name}.png")


def _write(file: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table; tabs and line ends in its cells become spaces."""
    lines = ("\t".join(one_line(str(cell)).replace("\t", " ") for cell in row) for row in rows)
    disk.replace_text(file, "".join(f"{line}\n" for line in lines))
