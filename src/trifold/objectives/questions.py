"""Questions about a text with their answers: columns, rows and scores, for answers that are spans
of the text and for those that a model writes.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trifold.data import Role, Rows, read_records
from trifold.data.roles import check_text
from trifold.data.squad import check_answers
from trifold.errors import DataError
from trifold.objectives.evaluation import Evaluation, Sample
from trifold.scores.bootstrap import Resampled, mean_scorer
from trifold.scores.squad import SquadScore, score_answer

# --- columns --------------------------------------------------------------------------------------


def _read_answers(value: Any, _place: str) -> Any:
    """Answers: a list or an object of lists, also as JSON in the cell of a table, or one text. An
    empty text means no answer.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("", "[", "{"):
        return value
    if not value.strip():
        return []
    for parse in (json.loads, ast.literal_eval):  # as JSON and as Python write lists
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(value)
    return value


def _read_start(value: Any, _place: str) -> Any:
    """The number in a cell of a table; pandas writes 17.0 in a column with empty cells."""
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
            if number.is_integer():
                return int(number)
    return value


ROLES = {
    "id": Role(
        ("id", "qid", "question_id"),
        lambda value, place: str(value),
        required=False,
        identifies=False,
    ),
    "question": Role(("question", "query"), check_text),
    "context": Role(("context", "passage", "paragraph", "document", "text"), check_text),
    "answers": Role(("answers", "answer", "answer_text"), _read_answers, identifies=False),
    # Of an answer that is a text.
    "start": Role(
        ("answer_start",), _read_start, required=False, may_be_empty=True, identifies=False
    ),
}


# --- rows with spans ------------------------------------------------------------------------------


def read_spans(source: Any, settings: Any, split: str) -> Rows:
    """The questions; the answers as {"text", "start"}, none if the question has no answer.

    Raises DataError, which names file and id, for an answer that is not in its context.
    """
    rows = read_records(source, settings, ROLES, split)
    columns = rows.columns
    starts = rows.columns.pop("start")
    for row, context in enumerate(columns["context"]):
        answers = _listed(columns["answers"][row], starts[row], rows, row)
        columns["answers"][row] = check_answers(answers, context, place_of(rows, row))
    if missing := columns["answers"].count([]):
        rows.report.notes.append(f"{missing:,} without an answer")
    return rows


def _listed(answers: Any, start: Any, rows: Rows, row: int) -> Any:
    """The answers, of which a text that has a start is the only one."""
    if isinstance(answers, str) and start is not None:
        return [{"text": answers, "answer_start": start}]
    if isinstance(answers, list | Mapping):
        return answers
    column = rows.report.columns.get("answers", "answers")
    raise DataError(
        f"{rows.report.name}:{rows.lines[row]}: {column!r} is {answers!r:.40}, expected a list of "
        "answers, each with text and answer_start (no answer: []), or a text beside a column "
        "answer_start"
    )


def place_of(rows: Rows, row: int) -> str:
    """The file and the id of a question, or its line if it has no id."""
    name = rows.columns["id"][row]
    if name is None:
        return f"{rows.report.name}:{rows.lines[row]}"
    return f"{rows.report.name}, question {name!r:.80}"


# --- rows with answers in any words ---------------------------------------------------------------


class WrittenAnswers(Rows):
    """Questions with answers in any words, of which the first one is the target; it is empty if
    there is none.
    """

    @property
    def targets(self) -> list[str]:
        return [answers[0]["text"] if answers else "" for answers in self.columns["answers"]]


def read_texts(source: Any, settings: Any, split: str) -> WrittenAnswers:
    """The questions; the answers as {"text"}, none if the question has no answer. They may be in
    other words than the context.
    """
    rows = read_records(source, settings, ROLES, split)
    columns = rows.columns
    del columns["start"]
    for row, answers in enumerate(columns["answers"]):
        columns["answers"][row] = [
            {"text": text} for text in _texts_of(answers, place_of(rows, row)) if text.strip()
        ]
    if missing := columns["answers"].count([]):
        rows.report.notes.append(f"{missing:,} without an answer")
    return WrittenAnswers(**vars(rows))


def _texts_of(answers: Any, place: str) -> list[str]:
    """The texts of answers: one, a list of texts or of objects with a text, or an object with a
    text or a list of them.
    """
    if isinstance(answers, Mapping):
        answers = answers.get("text")
    if not isinstance(answers, list):
        answers = [answers]
    texts = [one.get("text") if isinstance(one, Mapping) else one for one in answers]
    written = [text for text in texts if text is not None]
    return [check_text(text, f"{place}: the text of an answer") for text in written]


# --- scores ---------------------------------------------------------------------------------------


def score_answers(rows: Rows, predictions: Sequence[str], samples: int) -> Evaluation:
    """Exact match and F1 of the words of an answer to each question, and `samples` of them."""
    columns = rows.columns
    references = [[answer["text"] for answer in answers] for answers in columns["answers"]]
    score = SquadScore()
    score.add(references, predictions)
    pairs = zip(references, predictions, strict=True)
    exact, f1 = zip(*(score_answer(*pair) for pair in pairs), strict=True)
    means = {"exact_match": [100 * x for x in exact], "f1": [100 * x for x in f1]}
    resampled = Resampled(mean_scorer(means), len(predictions), "questions")
    expected = map(_expected_answer, references, predictions)
    shown = [*map(Sample, columns["question"], expected, predictions)][:samples]
    return Evaluation(score.values(), shown, [score.signature], resampled=resampled)


def _expected_answer(references: Sequence[str], prediction: str) -> str:
    """The answer to show beside a prediction: one that it matches exactly, or the first one; empty
    if there is none.
    """
    is_exact, _ = score_answer(references, prediction)
    if is_exact:
        return prediction
    return references[0] if references else ""
