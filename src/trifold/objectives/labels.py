"""Labels of classification: which problem they pose, their columns, and their names.

A text has one label, any number of labels, or a number (regression).
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.data import Records, Role
from trifold.data.tables import TEXTS, check_text
from trifold.errors import DataError
from trifold.nn import ModelConfig
from trifold.nn.config import ProblemType
from trifold.objectives.objective import BuildContext
from trifold.predict.classify import MULTI, REGRESSION, SINGLE

# The scores of each problem; the first one selects the best weights by default.
SCORES = {
    SINGLE: ("accuracy", "macro_f1", "f1", "matthews"),
    MULTI: ("micro_f1", "macro_f1", "subset_accuracy"),
    REGRESSION: ("pearson", "spearman"),
}
NUMBERS = "score similarity similarity_score relatedness_score".split()  # columns of a regression
FIRST = (
    "sentence1",
    "premise",
    "question1",
    "#1 string",
    "text1",
    "text_a",
    "sentence_a",
    "question",
)
SECOND = "sentence2,hypothesis,question2,#2 string,text2,text_b,sentence_b,passage,sentence".split(
    ","
)
LABELS = (
    *"label labels gold_label class category sentiment emotion topic intent".split(),
    *"quality is_duplicate".split(),
    *NUMBERS,
    *"rating,stars,acceptability,genre,label_coarse,coarse_label,answer,target,class index".split(
        ","
    ),
)


def read_label(value: Any, place: str) -> str | list[str]:
    """A label, or the list of labels, from text, numbers and lists. Raises DataError for anything
    else.

    The "-" of SNLI's gold labels, for pairs on which the annotators do not agree, is read as no
    label.
    """
    if isinstance(value, list):
        return [str(read_label(each, place)) for each in value]
    if value == "-" and place.endswith("'gold_label'"):
        return ""
    return check_text(str(value) if isinstance(value, int | float) else value, place)


ROLES = {
    "text": Role((*FIRST, *TEXTS, "source"), check_text),
    "pair": Role(SECOND, check_text, required=False),
    "label": Role(LABELS, read_label, identifies=False),
}


def config_with_labels(
    context: BuildContext, config: ModelConfig, train: Records, valid: Records, separator: str
) -> ModelConfig:
    """The config with its problem type, and the labels of the rows unless it names them already."""
    problem = config.problem_type or _find_problem(context, config, train)
    if problem == REGRESSION:
        numbers = read_numbers(train)
        context.report(f"numbers from {numbers.min():g} to {numbers.max():g}: regression")
        names = config.label_names if config.n_labels == 1 else (train.report.columns["label"],)
        return config.model_copy(
            update={"n_labels": 1, "label_names": names, "problem_type": REGRESSION}
        )
    found = {*chain.from_iterable(label_sets(train, problem, separator))}
    held_out = label_sets(valid, problem, separator) if context.data.holdout else []
    labels = sort_labels([*found, *chain.from_iterable(held_out)])  # a rare label may be held out
    update: dict[str, Any] = {} if problem == SINGLE else {"problem_type": problem}
    if config.label_names is None and not set(labels) <= set(config.labels):
        _check_labels(context, train, valid, found, labels)
        update |= {"n_labels": len(labels), "label_names": labels}
    config = config.model_copy(update=update)
    if (
        unknown := sorted({*labels}.difference(config.labels))
    ) and context.data.train != context.data.valid:
        raise DataError(
            f"{train.report.name}: the label {unknown[0]!r:.60} is not in model.label_names; add it"
        )
    context.report_labels("labels", config.labels)
    return config


def _find_problem(context: BuildContext, config: ModelConfig, rows: Records) -> ProblemType:
    """One label per text unless the rows have lists, or a column of scores has decimals; reports
    these.
    """
    labels, column = rows.columns["label"], rows.report.columns["label"]
    if config.label_names is not None:
        return "single_label_classification"
    if any(isinstance(label, list) for label in labels):
        context.report("lists of labels: a text may have several, or none")
        return "multi_label_classification"
    are_numbers = all(re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+", label) for label in labels)
    if are_numbers and any("." in label for label in labels):
        if column.strip().casefold() in NUMBERS:
            context.report(
                f"{column!r} has decimals: regression; model.problem_type={SINGLE} makes them "
                "labels"
            )
            return "regression"
        context.report(
            f"warning: labels with decimals; model.problem_type={REGRESSION} predicts numbers"
        )
    elif are_numbers and (column.strip().casefold() in NUMBERS or _has_gaps({*map(int, labels)})):
        context.report(
            f"{column!r} has whole numbers: classes; model.problem_type={REGRESSION} predicts "
            "numbers"
        )
    return "single_label_classification"


def _has_gaps(numbers: set[int]) -> bool:
    """Whether these are rather scores than the numbers of classes, which have no gaps."""
    return len(numbers) > 10 and max(numbers) - min(numbers) >= len(numbers)


def _check_labels(
    context: BuildContext, train: Records, valid: Records, found: set[str], labels: Sequence[str]
) -> None:
    """Raises DataError for a single label, and for labels in the column of texts. Warns about a
    likely header.

    found: labels of the training rows. labels: all of them.
    """
    name = train.report.name
    texts = len({*zip(train.columns["text"], train.columns["pair"], strict=True)})
    if len(found) > texts:
        raise DataError(
            f"{name}: {texts:,} different texts with {len(found):,} different labels; the "
            "columns are likely swapped; "
            "set data.columns.text and data.columns.label, by name or by number from 0"
        )
    if len(labels) < 2:
        raise DataError(
            f"{name}: the only label is {labels[0]!r}, and classification requires two; is "
            "data.columns.label the "
            "column of the labels?"
        )
    if context.data.header is None and "no header" in str(train.report):
        both = [
            *zip(
                train.lines + valid.lines,
                train.columns["label"] + valid.columns["label"],
                strict=True,
            )
        ]
        later = {label for line, label in both if line > 1}
        for label in {label for line, label in both if line == 1} - later:
            context.report(
                f"warning: the label {label!r:.40} is in row 1 only; if that is a header, "
                "data.header=true skips it"
            )


def label_sets(rows: Records, problem: str, separator: str) -> list[list[str]]:
    """The labels of each row. Raises DataError for a list where each text has one label."""
    found = []
    for label, line in zip(rows.columns["label"], rows.lines, strict=True):
        names = label if isinstance(label, list) else [label]
        if problem == SINGLE and names is label:
            raise DataError(
                f"{rows.report.name}:{line}: a list of labels; set model.problem_type={MULTI} "
                "if texts have several"
            )
        if problem == MULTI and names is not label:
            names = [name for each in label.split(separator) if (name := each.strip())]
        found.append(names)
    return found


def read_numbers(rows: Records) -> NDArray[np.float32]:
    """(N,) the labels of a regression. Raises DataError for one that is not a finite number."""
    found = []
    for label, line in zip(rows.columns["label"], rows.lines, strict=True):
        try:
            found.append(float(label))
        except (ValueError, TypeError):
            found.append(np.nan)
        if not np.isfinite(found[-1]):
            raise DataError(
                f"{rows.report.name}:{line}: the label {label!r:.60} is not a number; correct it, "
                " or set data.columns.label to the column of the numbers"
            )
    return np.array(found, dtype=np.float32)


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels in alphabetical order, numbers in them by value: "2 stars" before "10
    stars".
    """

    def key(label: str) -> list[Any]:
        parts = re.split(r"([0-9]+)", label)  # text and number alternate
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return tuple(sorted(set(labels), key=lambda label: (key(label), label)))
