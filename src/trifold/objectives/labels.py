"""Labels of classification: their columns, how they are read, and their names.

A text has one label, any number of labels, or a number (regression); `label_config.py` decides
which.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.data import Role, Rows
from trifold.data.headers import TEXTS
from trifold.data.holdout import normalized
from trifold.data.roles import MISSING, check_text, is_missing, list_in
from trifold.errors import DataError, plural
from trifold.nn import ModelConfig
from trifold.nn.config import MULTI, REGRESSION, SINGLE
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
NO_LABEL = "-1"  # stands for none beside numbers from 0
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
SECOND = (
    "sentence2",
    "hypothesis",
    "question2",
    "#2 string",
    "text2",
    "text_b",
    "sentence_b",
    "passage",
    "sentence",
)
LABELS = (
    *"label labels gold_label class category sentiment emotion topic intent".split(),
    *"quality is_duplicate".split(),
    *NUMBERS,
    *"rating stars acceptability genre label_coarse coarse_label answer target".split(),
    "class index",
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
    return [name for item in value if (name := _read_name(item, place))]


def _list_of(text: str, place: str) -> str | list[Any]:
    """The list that a text writes, or the text. Raises DataError for a list that is not clear."""
    if (names := list_in(text)) is not None:
        return names
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
    if isinstance(value, int | float) and not is_missing(value):
        value = str(value)
    return check_text(value, place).strip()


def read_labels(value: Any, place: str) -> Any:
    """`read_label` where a text may have no label: it is empty then."""
    if isinstance(value, str) and not value.strip():
        return ""
    return read_label(value, place)


ROLES = {
    "text": Role((*FIRST, *TEXTS, "source"), check_text),
    "pair": Role(SECOND, check_text, required=False),
    "label": Role(LABELS, read_label, identifies=False),
}
# The label of a text that may have several, or none.
SEVERAL = ROLES["label"]._replace(convert=read_labels, may_be_empty=True)


def write_whole_numbers(*parts: Rows) -> None:
    """Write the labels 0.0, 1.0, … as 0, 1, … in a part whose labels are all whole numbers.

    Labels are only written so if some are missing in any part, for which pandas changes whole
    numbers to decimals, or if some have no point. Columns of scores stay as they are.
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
    known = context.model.label_names or labels - {NO_LABEL}
    has_numbers = single and all(map(str.isdecimal, known))
    if has_numbers and max(map(int, known), default=0) >= 2:
        return [_without_unknown(context, rows) for rows in (train, *others)]
    return [train, *others]


def _without_unknown(context: BuildContext, rows: Rows) -> Rows:
    kept = [row for row, label in enumerate(rows.columns["label"]) if label != NO_LABEL]
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
    labelled = rows.select(kept, rows.report.name)
    labelled.report = rows.report  # has the columns
    return labelled


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


def report_contradictions(context: BuildContext, rows: Rows) -> None:
    """Report how many texts occur with different labels, and the lines of the first."""
    roles = [role for role in rows.identity if any(rows.columns[role])]
    seen = dict[tuple[str, ...], tuple[str, int]]()
    found = dict[tuple[str, ...], str]()
    texts = zip(*(rows.columns[role] for role in roles), strict=True)
    for values, label, line in zip(texts, rows.columns["label"], rows.lines, strict=True):
        text = tuple(normalized(str(value)) for value in values)
        first, place = seen.setdefault(text, (str(label), line))
        if first != str(label):
            found.setdefault(text, f"lines {place} and {line}")
    if found:
        context.report(
            f"{rows.report.name}: {plural(len(found), 'text')} with different labels "
            f"({next(iter(found.values()))})"
        )


def label_sets(rows: Rows, problem: str, separator: str) -> list[list[str]]:
    """The labels of each row. Raises DataError for a list where each text has one label."""
    labels = rows.columns["label"]
    if problem == MULTI:
        return [split_label(label, separator) for label in labels]
    for label, line in zip(labels, rows.lines, strict=True):
        if isinstance(label, list):
            raise DataError(
                f"{rows.report.name}:{line}: a list of labels; set model.problem_type={MULTI} "
                "if texts have several"
            )
    return [[label] for label in labels]


def split_label(label: str | list[str], separator: str) -> list[str]:
    """The labels of a text that may have several: those of a list, or of a text that separates
    them.
    """
    if isinstance(label, list):
        return label
    return [name for part in label.split(separator) if (name := part.strip())]


def read_numbers(rows: Rows) -> NDArray[np.float32]:
    """(N,) the labels of a regression. Raises DataError for one that is not a finite number."""
    numbers = []
    for label, line in zip(rows.columns["label"], rows.lines, strict=True):
        if (number := read_number(label)) is None:
            raise DataError(
                f"{rows.report.name}:{line}: the label {label!r:.60} is not a number; correct it, "
                "or set data.columns.label to the column of the numbers"
            )
        numbers.append(number)
    return np.array(numbers, dtype=np.float32)


def read_number(label: Any) -> float | None:
    """The number that a label writes with a decimal point or comma; None if it is not finite."""
    text = str(label).replace("\N{MINUS SIGN}", "-")
    if re.fullmatch("[-+]?[0-9]*,[0-9]+", text):
        text = text.replace(",", ".")
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
    if start is not None:
        for names in class_names(start):
            if {*names} == {*labels}:
                return names
    return tuple(labels)


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
        parts: list[Any] = re.split(r"([0-9]+)", label)  # text and number alternate
        parts[1::2] = map(int, parts[1::2])
        return parts

    return tuple(sorted(set(labels), key=lambda label: (key(label), label)))
