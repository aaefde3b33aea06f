"""Labels of classification: which problem they pose, their columns, and their names.

A text has one label, any number of labels, or a number (regression).
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.data import Role, Rows
from trifold.data.holdout import normalized
from trifold.data.tables import MISSING, TEXTS, check_text, is_missing, list_in
from trifold.errors import DataError, plural
from trifold.nn import ModelConfig
from trifold.nn.config import MULTI, REGRESSION, SINGLE, ProblemType
from trifold.objectives.objective import BuildContext

# The scores of each problem; the first one selects the best weights by default.
SCORES = {
    SINGLE: ("accuracy", "macro_f1", "f1", "matthews"),
    MULTI: ("micro_f1", "macro_f1", "subset_accuracy"),
    REGRESSION: ("pearson", "spearman"),
}
NUMBERS = "score similarity similarity_score relatedness_score".split()  # columns of a regression
# Columns whose cells hold several labels.
PLURALS = "labels tags topics categories genres emotions intents classes".split()
UNKNOWN = "-1"  # stands for no label beside numbers from 0
# What people read as a number, such as 45 %, 1 234.5, $3.99 and 4/5.
_LIKE_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\s?[^\w\s]?\s?\d[\d\s.,'’/\u066b]*\s?[^\w\s]?")
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
    *(name for name in PLURALS if name != "labels"),
)


def read_label(value: Any, place: str) -> Any:
    """A label, or the list of labels, from text, numbers and lists, also a list that a text writes;
    MISSING for none. Space around labels is not part of them. Raises DataError for anything else.

    The "-" of SNLI's gold labels, for pairs on which the annotators do not agree, is read as no
    label.
    """
    if is_missing(value) or (value == "-" and place.endswith("'gold_label'")):
        return MISSING
    if isinstance(value, str):
        value = _list_of(check_text(value, place).strip(), place)
    if not isinstance(value, list):
        return _read_name(value, place)
    return [name for each in value if (name := _read_name(each, place))]


def _list_of(text: str, place: str) -> str | list[Any]:
    """The list that a text writes, or the text. Raises DataError for a list that is not clear."""
    if (found := list_in(text)) is not None:
        return found
    if text.startswith(("[[", "['", '["', "array([")) or re.fullmatch(
        r"\[.*,.*\]", text, re.DOTALL
    ):
        raise DataError(
            f"{place} is {text!r:.60}, not a list of labels that can be read; write it as JSON, "
            'such as ["one", "two"]'
        )
    return text


def _read_name(value: Any, place: str) -> str:
    if isinstance(value, list):
        raise DataError(
            f"{place} is {value!r:.60}, a list in a list; write one list of labels, such as "
            '["one", "two"]'
        )
    is_number = isinstance(value, int | float) and not is_missing(value)
    return check_text(str(value) if is_number else value, place).strip()


def read_labels(value: Any, place: str) -> Any:
    """`read_label` where a text may have no label: it is empty then."""
    is_empty = isinstance(value, str) and not value.strip()
    return "" if is_empty else read_label(value, place)


ROLES = {
    "text": Role((*FIRST, *TEXTS, "source"), check_text),
    "pair": Role(SECOND, check_text, required=False),
    "label": Role(LABELS, read_label, identifies=False),
}
# The label of a text that may have several, or none.
SEVERAL = ROLES["label"]._replace(convert=read_labels, may_be_empty=True)


def config_with_labels(
    context: BuildContext, config: ModelConfig, train: Rows, valid: Rows, separator: str
) -> ModelConfig:
    """The config with its problem type, and the labels of the rows unless it names them already.

    The labels have the order of those of the model that training starts from, if they are the same.
    """
    problem = config.problem_type or _find_problem(context, config, train, separator)
    if problem == REGRESSION:
        return _config_of_regression(context, config, train)
    found = {*chain.from_iterable(label_sets(train, problem, separator))}
    held_out = label_sets(valid, problem, separator) if context.data.holdout else []
    labels = sort_labels([*found, *chain.from_iterable(held_out)])  # a rare label may be held out
    labels = order_labels(context.start, labels)
    update: dict[str, Any] = {} if problem == SINGLE else {"problem_type": problem}
    if config.label_names is None and not (labels and {*labels} <= {*config.labels}):
        _check_labels(context, train, valid, found, labels)
        report_similar(context, labels)
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
    if column.strip().casefold() in NUMBERS:
        _check_scores(rows, is_likely=2 * decimals >= len(labels))
        if decimals:
            context.report(
                f"{column!r} has decimals: regression; model.problem_type={SINGLE} makes them "
                "labels"
            )
            return REGRESSION
    elif 2 * decimals >= len(labels) or (decimals and None not in map(read_number, labels)):
        context.report(
            f"warning: labels with decimals; model.problem_type={REGRESSION} predicts numbers"
        )
    elif all(_LIKE_NUMBER.fullmatch(label) and read_number(label) is None for label in labels):
        context.report(
            f"warning: labels such as {labels[0]!r:.40} look like numbers and are classes; write "
            f"them as 12.5 and set model.problem_type={REGRESSION} to predict numbers"
        )
    numbers = {int(label) for label in labels if re.fullmatch(r"[-+]?[0-9]+", label)}
    are_whole = all(re.fullmatch(r"[-+]?[0-9]+", label) for label in labels)
    if are_whole and (column.strip().casefold() in NUMBERS or _has_gaps(numbers)):
        context.report(
            f"{column!r} has whole numbers: classes; model.problem_type={REGRESSION} predicts "
            "numbers"
        )
    return SINGLE


def _check_indicators(rows: Rows) -> None:
    """Raises DataError for lists such as [1, 0, 0], which have a 0 or a 1 for each label."""
    labels = rows.columns["label"]
    lists = [label for label in labels if isinstance(label, list)]
    widths = {*map(len, lists)}
    names = {*chain.from_iterable(lists)}
    is_alike = len(lists) == len(labels) > 1 and len(widths) == 1 and min(widths) > 1
    if is_alike and names <= {"0", "1", "0.0", "1.0"}:
        listed = ", ".join(lists[0][:20])
        raise DataError(
            f"{rows.report.name}:{rows.lines[0]}: [{listed}] in {rows.report.columns['label']!r} "
            "has a 0 or a 1 for each label, and not the labels; write the names, such as "
            '["one", "two"]'
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
    words = [
        place for place, label in enumerate(rows.columns["label"]) if read_number(label) is None
    ]
    labels = [rows.columns["label"][place] for place in words]
    if words and (is_likely or all(map(_LIKE_NUMBER.fullmatch, labels))):
        raise DataError(
            f"{rows.report.name}:{rows.lines[words[0]]}: {labels[0]!r:.60} in "
            f"{rows.report.columns['label']!r} is not a number that can be read; write it as 12.5, "
            f"leave the cell empty, or set model.problem_type={SINGLE} if it is a label"
        )


def _has_several(
    context: BuildContext, labels: Collection[str], column: str, separator: str
) -> bool:
    """Whether the cells of a column hold several labels: it is named so, or training starts from
    such a model. Reports this, and other cells that look like it.
    """
    cells = sorted(each for each in labels if separator in each and read_number(each) is None)
    parts = {part.strip() for cell in cells for part in cell.split(separator)} - {""}
    alone = {*labels}.difference(cells)
    start = context.start
    is_known = (
        start is not None and start.problem_type == MULTI and alone | parts <= {*start.labels}
    )
    if is_known or (cells and column.strip().casefold() in PLURALS):
        context.report(
            f"{separator!r} separates labels in {column!r}: a text may have several; "
            f"model.problem_type={SINGLE} reads a cell as one"
        )
        return True
    if not cells and column.strip().casefold() in PLURALS:
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


def write_whole_numbers(*parts: Rows) -> None:
    """Write the labels 0.0, 1.0, … as 0, 1, … beside missing ones, for which pandas changes whole
    numbers to decimals, and beside 0 and 1, which are the same numbers. Scores stay decimals.
    """
    has_missing = any(rows.report.missing for rows in parts)
    every = [str(label) for rows in parts for label in rows.columns["label"]]
    is_mixed = has_missing or any("." not in label for label in every)
    column = parts[0].report.columns["label"]
    for rows in parts:
        labels = rows.columns["label"]
        is_whole = all(re.fullmatch(r"-?[0-9]+(\.0)?", str(label)) for label in labels)
        if is_whole and is_mixed and column.strip().casefold() not in NUMBERS:
            rows.columns["label"] = [label.removesuffix(".0") for label in labels]


def leave_out_unknown(context: BuildContext, train: Rows, *others: Rows) -> list[Rows]:
    """The rows without those of the label -1, if it stands for none, as in SNLI: the others are
    whole numbers from 0 to 2 or more. Beside 0 and 1 it is a class. Reports how many are left out.
    Raises DataError if no row is left.
    """
    single = context.model.problem_type in (None, SINGLE)
    labels = {label for label in train.columns["label"] if isinstance(label, str)}
    known = context.model.label_names or labels - {UNKNOWN}
    has_numbers = single and all(map(str.isdecimal, known))
    if has_numbers and max(map(int, known), default=0) >= 2:
        return [_without_unknown(context, rows) for rows in (train, *others)]
    return [train, *others]


def _without_unknown(context: BuildContext, rows: Rows) -> Rows:
    kept = [n for n, label in enumerate(rows.columns["label"]) if label != UNKNOWN]
    if len(kept) == len(rows):
        return rows
    if not kept:
        raise DataError(
            f"{rows.report.name}: the label of every row is -1, which stands for none, as in the "
            "test rows of public benchmarks; name a file with labels"
        )
    left_out = plural(len(rows) - len(kept), "row")
    context.report(
        f"{rows.report.name}: {left_out} with the label -1, which stands for none: left out"
    )
    chosen = rows.select(kept, rows.report.name)
    chosen.report = rows.report  # has the columns
    return chosen


def report_similar(context: BuildContext, labels: Sequence[str]) -> None:
    """Warn about labels that differ only in case, space or the form of characters."""
    groups = defaultdict[str, list[str]](list)
    for label in labels:
        groups[normalized(unicodedata.normalize("NFKC", label))].append(label)
    for names in groups.values():
        if len(names) > 1:
            context.report(
                f"warning: the labels {' and '.join(map(repr, names))} differ only in case or "
                "space, and are different classes; write them alike if they are one"
            )


def _check_labels(
    context: BuildContext, train: Rows, valid: Rows, found: set[str], labels: Sequence[str]
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
        found_labels = f"the only label is {labels[0]!r}" if labels else "no row has a label"
        raise DataError(
            f"{name}: {found_labels}, and classification requires two; is data.columns.label the "
            "column of the labels?"
        )
    if context.data.header is None and "no header" in str(train.report):
        rows = [
            (line == 1, (text, label))
            for part in (train, valid)
            for line, text, label in zip(
                part.lines, part.columns["text"], part.columns["label"], strict=True
            )
            if isinstance(label, str)
        ]
        first = {row for is_first, row in rows if is_first}
        # Joined files repeat their header.
        later = {row[1] for _, row in rows if row not in first}
        for label in {label for _, label in first} - later:
            context.report(
                f"warning: the label {label!r:.40} is in row 1 only; if that is a header, "
                "data.header=true skips it"
            )


def label_sets(rows: Rows, problem: str, separator: str) -> list[list[str]]:
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


def read_numbers(rows: Rows) -> NDArray[np.float32]:
    """(N,) the labels of a regression. Raises DataError for one that is not a finite number."""
    found = []
    for label, line in zip(rows.columns["label"], rows.lines, strict=True):
        if (number := read_number(label)) is None:
            raise DataError(
                f"{rows.report.name}:{line}: the label {label!r:.60} is not a number; correct it, "
                "or set data.columns.label to the column of the numbers"
            )
        found.append(number)
    return np.array(found, dtype=np.float32)


def read_number(label: Any) -> float | None:
    """The number that a label writes with a decimal point or comma; None if it is not finite."""
    text = str(label).replace("\N{MINUS SIGN}", "-")
    text = text.replace(",", ".") if re.fullmatch("[-+]?[0-9]*,[0-9]+", text) else text
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number
    return None


def check_commas(rows: Rows) -> None:
    """Raises DataError if the commas of all numbers may also separate thousands."""
    both = zip(rows.columns["label"], rows.lines, strict=True)
    commas = [(label, line) for label, line in both if "," in label]
    if commas and all(re.fullmatch("[-+]?[1-9][0-9]{0,2},[0-9]{3}", label) for label, _ in commas):
        label, line = commas[0]
        raise DataError(
            f"{rows.report.name}:{line}: {label!r} is {label.replace(',', '')} or "
            f"{label.replace(',', '.')}; write numbers without separators of thousands"
        )


def order_labels(start: ModelConfig | None, labels: Sequence[str]) -> tuple[str, ...]:
    """The labels in the order of the model that training starts from, if it has the same ones."""
    known = [] if start is None else class_names(start)
    return next((names for names in known if {*names} == {*labels}), tuple(labels))


def class_names(config: ModelConfig) -> list[tuple[str, ...]]:
    """The classes of a model in their order; also their numbers, if it does not name them."""
    if config.label_names is not None:
        return [config.labels]
    return [config.labels, tuple(map(str, range(config.n_labels)))]


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels in alphabetical order, numbers in them by value: "2 stars" before "10
    stars".
    """

    def key(label: str) -> list[Any]:
        parts = re.split(r"([0-9]+)", label)  # text and number alternate
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return tuple(sorted(set(labels), key=lambda label: (key(label), label)))
