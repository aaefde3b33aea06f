"""The config of a classification, from the labels of its rows: which problem they pose, and the
names of its classes.

A text has one label, any number of labels, or a number (regression). What the recipe leaves open,
the form of the labels and the name of their column decide; each decision is reported.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from trifold.data import Rows
from trifold.errors import DataError, join_or
from trifold.nn import ModelConfig
from trifold.nn.config import MULTI, REGRESSION, SINGLE, ProblemType
from trifold.objectives.labels import (
    NUMBERS,
    PLURALS,
    check_commas,
    label_sets,
    order_labels,
    read_number,
    read_numbers,
    report_contradictions,
    report_similar,
    sort_labels,
)
from trifold.objectives.objective import BuildContext

NO_LABELS = {"na", "n.a.", "none", "-", "--", "?"}  # that tables often have for no value
MOST_SHARES = 6  # labels whose shares are reported; of more, that of the most frequent one
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+")
# What people read as a number, such as 45 %, 1 234.5, $3.99 and 4/5.
_LIKE_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\s?[^\w\s]?\s?\d[\d\s.,'’/\u066b]*\s?[^\w\s]?")


def config_with_labels(
    context: BuildContext, config: ModelConfig, train: Rows, valid: Rows, separator: str
) -> ModelConfig:
    """The config with its problem type, and the labels of the rows unless it names them already.

    The labels have the order of those of the model that training starts from, if they are the same.
    """
    problem = config.problem_type or _find_problem(context, config, train, separator)
    if problem == REGRESSION:
        return _config_of_regression(context, config, train)
    in_training = {*chain.from_iterable(label_sets(train, problem, separator))}
    names = [*in_training]
    if context.data.holdout:  # a rare label may be held out
        names += chain.from_iterable(label_sets(valid, problem, separator))
    labels = order_labels(context.start, sort_labels(names))
    update = dict[str, Any]()
    if problem != SINGLE:
        update["problem_type"] = problem
    if config.label_names is None and not (labels and {*labels} <= {*config.labels}):
        _check_labels(context, train, valid, in_training, labels)
        report_similar(context, labels)
        update |= {"n_labels": len(labels), "label_names": labels}
    config = config.model_copy(update=update)
    unknown = sorted({*labels}.difference(config.labels))
    if unknown and context.data.train != context.data.valid:
        raise DataError(
            f"{train.report.name}: the label {unknown[0]!r:.60} is not in model.label_names; add it"
        )
    context.report_labels("labels", config.labels)
    if problem == SINGLE:
        context.report(_describe_shares(config.labels, valid if len(valid) else train))
        if doubtful := sorted(label for label in config.labels if label.casefold() in NO_LABELS):
            listed = join_or([*map(repr, doubtful)])
            context.report(
                f"warning: {listed} is learned as a label; if it says that there is none, leave "
                "the cell empty"
            )
    if problem == SINGLE and train.columns.get("image") is None:
        report_contradictions(context, train)
    return config


def _describe_shares(labels: Sequence[str], rows: Rows) -> str:
    """The line about what an accuracy is worth: the shares of the labels in the rows that are
    scored, and the accuracy of the most frequent one.

    labels: of the model.
    """
    found = rows.columns["label"]
    counts = Counter(map(str, found))
    listed = counts.most_common(MOST_SHARES if len(counts) <= MOST_SHARES else 1)
    shares = [f"{label:.20} {100 * count / len(found):.0f} %" for label, count in listed]
    label, count = listed[0]
    parts = [
        f"shares ({rows.report.name}): {', '.join(shares)}",
        f"always answering {label!r:.22} has accuracy {100 * count / len(found):.1f}",
    ]
    if len(labels) == 2:
        parts.append(f"f1 is that of {labels[1]!r:.22}")
    return "; ".join(parts)


# --- regression -----------------------------------------------------------------------------------


def _config_of_regression(context: BuildContext, config: ModelConfig, rows: Rows) -> ModelConfig:
    """The config with one output, named after the column. Raises DataError for equal numbers."""
    numbers = read_numbers(rows)
    column = rows.report.columns["label"]
    check_commas(rows)
    if config.label_names is None and numbers.min() == numbers.max():
        raise DataError(
            f"{rows.report.name}: every number in {column!r} is {numbers[0]:g}, and a regression "
            "requires different ones; is data.columns.label the column of the numbers?"
        )
    context.report(f"numbers from {numbers.min():g} to {numbers.max():g}: regression")
    if not config.classifier_bias and abs(mean := numbers.mean()) > numbers.std():
        context.report(
            f"warning: the classifier of this model has no bias for the mean {mean:g} of the "
            "numbers; subtract it from them if they are not learned"
        )
    names = config.label_names if config.n_labels == 1 else (column,)
    return config.model_copy(
        update={"n_labels": 1, "label_names": names, "problem_type": REGRESSION}
    )


# --- which problem --------------------------------------------------------------------------------


def _find_problem(
    context: BuildContext, config: ModelConfig, rows: Rows, separator: str
) -> ProblemType:
    """One label per text unless the rows have lists, or a column of scores has decimals; reports
    these. Raises DataError for a score that is no number.
    """
    labels = rows.columns["label"]
    column = rows.report.columns["label"]
    if config.label_names is not None:
        return SINGLE
    if any(isinstance(label, list) for label in labels):
        _check_indicators(rows)
        context.report("lists of labels: a text may have several, or none")
        return MULTI
    if _has_several(context, {*labels}, column, separator):
        return MULTI
    decimals = sum(map(_is_decimal, labels))
    if _is_one_of(column, NUMBERS):
        _check_scores(rows, is_likely=2 * decimals >= len(labels))
        if decimals:
            context.report(
                f"{column!r} has decimals: regression; model.problem_type={SINGLE} makes them "
                "labels"
            )
            return REGRESSION
    else:
        _report_numbers(context, labels, decimals)
    _report_whole_numbers(context, labels, column)
    return SINGLE


def _is_one_of(column: str, names: Collection[str]) -> bool:
    return column.strip().casefold() in names


def _report_numbers(context: BuildContext, labels: Sequence[str], decimals: int) -> None:
    """Warn about labels that may be numbers, in a column that is not named so. decimals: how many
    of them are decimals.
    """
    are_mostly_decimals = 2 * decimals >= len(labels)
    if are_mostly_decimals or (decimals and None not in map(read_number, labels)):
        context.report(
            f"warning: labels with decimals; model.problem_type={REGRESSION} predicts numbers"
        )
    elif all(_LIKE_NUMBER.fullmatch(label) and read_number(label) is None for label in labels):
        context.report(
            f"warning: labels such as {labels[0]!r:.40} look like numbers and are classes; write "
            f"them as 12.5 and set model.problem_type={REGRESSION} to predict numbers"
        )


def _report_whole_numbers(context: BuildContext, labels: Sequence[str], column: str) -> None:
    """Report whole numbers that are rather scores than the numbers of classes."""
    if not all(map(_WHOLE_NUMBER.fullmatch, labels)):
        return
    if _is_one_of(column, NUMBERS) or _has_gaps({*map(int, labels)}):
        context.report(
            f"{column!r} has whole numbers: classes; model.problem_type={REGRESSION} predicts "
            "numbers"
        )


def _has_gaps(numbers: set[int]) -> bool:
    """Whether these are rather scores than the numbers of classes, which have no gaps."""
    return len(numbers) > 10 and max(numbers) - min(numbers) >= len(numbers)


def _is_decimal(label: str) -> bool:
    return read_number(label) is not None and not label.lstrip("+-\N{MINUS SIGN}").isdecimal()


def _check_scores(rows: Rows, *, is_likely: bool) -> None:
    """Raises DataError for labels that are no numbers if numbers are likely, or if these look like
    numbers too.
    """
    both = zip(rows.columns["label"], rows.lines, strict=True)
    words = [(label, line) for label, line in both if read_number(label) is None]
    if words and (is_likely or all(_LIKE_NUMBER.fullmatch(label) for label, _ in words)):
        label, line = words[0]
        raise DataError(
            f"{rows.report.name}:{line}: {label!r:.60} in "
            f"{rows.report.columns['label']!r} is not a number that can be read; write it as 12.5, "
            f"leave the cell empty, or set model.problem_type={SINGLE} if it is a label"
        )


# --- several labels -------------------------------------------------------------------------------


def _check_indicators(rows: Rows) -> None:
    """Raises DataError for lists such as [1, 0, 0], which have a 0 or a 1 for each label."""
    labels = rows.columns["label"]
    lists = [label for label in labels if isinstance(label, list)]
    widths = {*map(len, lists)}
    names = {*chain.from_iterable(lists)}
    are_alike = len(lists) == len(labels) > 1 and len(widths) == 1 and min(widths) > 1
    if are_alike and names <= {"0", "1", "0.0", "1.0"}:
        listed = ", ".join(lists[0][:20])
        raise DataError(
            f"{rows.report.name}:{rows.lines[0]}: [{listed}] in {rows.report.columns['label']!r} "
            "has a 0 or a 1 for each label, and not the labels; write the names, such as "
            '["one", "two"]'
        )


def _has_several(
    context: BuildContext, labels: Collection[str], column: str, separator: str
) -> bool:
    """Whether the cells of a column hold several labels: it is named so, or training starts from
    such a model. Reports this, and other cells that look like it.
    """
    cells = sorted(label for label in labels if separator in label and read_number(label) is None)
    parts = {part.strip() for cell in cells for part in cell.split(separator)} - {""}
    alone = {*labels}.difference(cells)
    start = context.start
    is_known = (
        start is not None and start.problem_type == MULTI and alone | parts <= {*start.labels}
    )
    is_plural = _is_one_of(column, PLURALS)
    if is_known or (cells and is_plural):
        context.report(
            f"{separator!r} separates labels in {column!r}: a text may have several; "
            f"model.problem_type={SINGLE} reads a cell as one"
        )
        return True
    if not cells and is_plural:
        _report_separators(context, labels, column)
    if cells and parts <= alone:
        context.report(
            f"warning: {cells[0]!r:.40} may be several labels; model.problem_type={MULTI} "
            f"separates them at {separator!r}"
        )
    return False


def _report_separators(context: BuildContext, labels: Collection[str], column: str) -> None:
    """Warn about another sign that separates labels which also stand alone."""
    for sign in ";|/":
        cells = sorted(label for label in labels if sign in label)
        parts = {part.strip() for cell in cells for part in cell.split(sign)} - {""}
        if cells and not parts.isdisjoint({*labels}.difference(cells)):
            context.report(
                f"warning: {cells[0]!r:.40} in {column!r} may be several labels; "
                f"task.label_separator={sign!r} separates them"
            )
            return


# --- classes --------------------------------------------------------------------------------------


def _check_labels(
    context: BuildContext,
    train: Rows,
    valid: Rows,
    in_training: set[str],
    labels: Sequence[str],
) -> None:
    """Raises DataError for a single label, and for labels in the column of texts. Warns about a
    likely header.

    in_training: labels of the training rows. labels: all of them.
    """
    name = train.report.name
    texts = len({*zip(train.columns["text"], train.columns["pair"], strict=True)})
    if len(in_training) > texts:
        raise DataError(
            f"{name}: {texts:,} different texts with {len(in_training):,} different labels; the "
            "columns are likely swapped; "
            "set data.columns.text and data.columns.label, by name or by number from 0"
        )
    if len(labels) < 2:
        existing = f"the only label is {labels[0]!r}" if labels else "no row has a label"
        raise DataError(
            f"{name}: {existing}, and classification requires two; is data.columns.label the "
            "column of the labels?"
        )
    if context.data.header is None and "no header" in str(train.report):
        _report_header(context, train, valid)


def _report_header(context: BuildContext, *sources: Rows) -> None:
    """Warn about labels that only the first rows of files have, which are likely headers."""
    rows = [
        (line == 1, (text, label))
        for part in sources
        for line, text, label in zip(
            part.lines, part.columns["text"], part.columns["label"], strict=True
        )
        if isinstance(label, str)
    ]
    first = {row for is_first, row in rows if is_first}
    # Joined files repeat their header.
    later = {label for _, (text, label) in rows if (text, label) not in first}
    for label in {label for _, label in first} - later:
        context.report(
            f"warning: the label {label!r:.40} is in row 1 only; if that is a header, "
            "data.header=true skips it"
        )
