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
from trifold.objectives.evaluation import Evaluation
from trifold.scores.classification import BINS, ClassificationScore

MOST = 50  # mistakes


def write_report(folder: Path, task: Any, rows: Any, evaluation: Evaluation) -> None:
    """Write mistakes.tsv; of a classification with one label also confusion and calibration (.tsv,
    .png).

    task, rows: an objective and its rows. evaluation: with a sample of each row. Raises
    TrifoldError without matplotlib.
    """
    plots.check_picture(folder / "confusion.png")
    disk.make_folder(folder)
    problem = getattr(task, "problem", None)
    _write_mistakes(folder / "mistakes.tsv", rows, evaluation, is_regression=problem == REGRESSION)
    if problem != SINGLE:
        return
    names = [*task.numbers]
    expected = [task.numbers[sample.reference] for sample in evaluation.samples]
    predicted = [task.numbers[sample.ours] for sample in evaluation.samples]
    score = ClassificationScore(len(names))
    score.add(expected, predicted, evaluation.confidences)
    _write_confusion(folder / "confusion.tsv", names, score)
    _write_calibration(folder / "calibration.tsv", score)
    confusion = plots.new_figure(5, 5)
    plots.draw_confusion(confusion.subplots(), score.table, names)
    plots.save_figure(confusion, folder / "confusion.png")
    calibration = plots.new_figure(5, 5)
    plots.draw_calibration(calibration.subplots(), score.reliability)
    plots.save_figure(calibration, folder / "calibration.png")


def _write_mistakes(file: Path, rows: Any, evaluation: Evaluation, *, is_regression: bool) -> None:
    """Write the samples with wrong outputs: the most confident first, or of a regression those with
    the largest errors.
    """
    mistakes = []
    samples = zip(evaluation.confidences, rows.lines, evaluation.samples, strict=False)
    for size, line, sample in samples:
        if sample.reference == sample.ours:
            continue
        if is_regression:
            assert sample.reference is not None  # the row has a label
            size = abs(float(sample.reference) - float(sample.ours))
        mistakes.append((size, line, sample))
    mistakes.sort(key=lambda mistake: -mistake[0])
    last = "error" if is_regression else "probability"
    table: list[Sequence[object]] = [("file", "line", "text", "expected", "predicted", last)]
    for size, line, sample in mistakes[:MOST]:
        table.append((rows.report.name, line, *sample, f"{size:.4f}"))
    write_table(file, table)


def _write_confusion(file: Path, names: list[str], score: ClassificationScore) -> None:
    """Write how often each class is predicted (columns) for each expected one (rows)."""
    counts = zip(names, score.table.tolist(), strict=True)
    write_table(file, [("expected", *names), *((name, *row) for name, row in counts)])


def _write_calibration(file: Path, score: ClassificationScore) -> None:
    """Write the mean confidence and the accuracy of predictions of similar confidence."""
    table: list[Sequence[object]] = [("from", "count", "confidence", "accuracy")]
    for index, (count, confidence, correct) in enumerate(score.reliability.tolist()):
        if count:
            mean = f"{confidence / count:.4f}"
            accuracy = f"{correct / count:.4f}"
            table.append((f"{index / BINS:.3f}", int(count), mean, accuracy))
    write_table(file, table)


def write_table(file: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table; tabs and line ends in its cells become spaces."""
    lines = ("\t".join(one_line(str(cell)).replace("\t", " ") for cell in row) for row in rows)
    disk.replace_text(file, "".join(f"{line}\n" for line in lines))
