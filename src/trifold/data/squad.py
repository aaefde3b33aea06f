"""JSON files: the questions, contexts and answers of SQuAD 1.1 and 2.0, or an array of objects."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trifold.data.formats import NumberedRow
from trifold.data.lines import read_text
from trifold.data.roles import check_text
from trifold.data.settings import DataSettings
from trifold.data.tables import parse_json
from trifold.errors import DataError

_FORM = (
    'SQuAD files are {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, '
    '"answers": …}]}]}]}; '
    "other .json files are an array of objects, and .jsonl files have one object per line"
)


def iter_squad(file: str, settings: DataSettings) -> Iterator[NumberedRow]:
    """The questions of a file, or the objects of an array, numbered from 1.

    The row of a question has "id", "question", "context" and "answers": a list of {"text",
    "start"}, start in characters of the context, which is empty if the question has no answer.
    Raises DataError if the file has another form, if an answer is not in its context, or if an id
    occurs twice.
    """
    content = parse_json(read_text(file), file, 1, _FORM)
    if isinstance(content, list):
        rows = enumerate(_list({"array": content}, "array", file), start=1)
        yield from ((number, f"{file}, row {number}", row) for number, row in rows)
        return
    number = 0
    ids = set[str]()
    for article in _list(content, "data", file):
        for paragraph in _list(article, "paragraphs", file):
            context = check_text(
                paragraph.get("context"), f"{file}: the context after question {number}"
            )
            for entry in _list(paragraph, "qas", file):
                number += 1
                name = str(entry.get("id", number))
                place = f"{file}, question {name!r:.80}"
                if name in ids:
                    raise DataError(f"{place}: the id occurs twice; give each question its own")
                ids.add(name)
                question = check_text(entry.get("question"), f"{place}: its text")
                given = _list(entry, "answers", place)
                answers = check_answers(given, context, place)
                impossible = entry.get("is_impossible", not answers)
                # Some files call a question with an empty answer possible.
                if impossible not in (not answers, not given):
                    raise DataError(
                        f"{place}: is_impossible is {json.dumps(impossible)}, but it has "
                        f"{len(answers)} answers; correct one of them"
                    )
                row = {"id": name, "question": question, "context": context, "answers": answers}
                yield number, place, row


def check_answers(answers: Any, context: str, place: str) -> list[dict[str, Any]]:
    """The answers as {"text", "start"}, from a list of objects with "answer_start", or an object of
    two lists. An answer with an empty text means that there is none, wherever it starts.

    Raises DataError if the text of one does not stand at its start in the context.
    """
    if isinstance(answers, Mapping):
        answers = _answers_of_lists(answers, place)
    checked = []
    for answer in answers:
        if not isinstance(answer, Mapping):
            raise DataError(f"{place}: an answer is {answer!r:.40}, expected an object; {_FORM}")
        if _is_empty(answer.get("text")):
            continue
        text = check_text(answer.get("text"), f"{place}: the text of an answer")
        start = answer.get("answer_start", answer.get("start"))
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(
                f"{place}: answer_start of {text!r:.80} is {start!r:.40}, expected an integer"
            )
        there = context[start : start + len(text)] if start >= 0 else ""
        if there != text:
            raise DataError(
                f"{place}: the answer {text!r:.80} is not at character {start} of its context, "
                f"where {there!r:.80} stands; correct answer_start, which counts characters from 0"
            )
        checked.append({"text": text, "start": start})
    return checked


def _is_empty(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())


def _answers_of_lists(answers: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """The answers of an object of two lists, as in the datasets of the hub, or of a single one."""
    texts = answers.get("text")
    starts = answers.get("answer_start", answers.get("start"))
    if not isinstance(texts, list):
        texts = [texts]
        starts = [starts]
    if all(map(_is_empty, texts)):
        return []
    if not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError(
            f"{place}: the lists `text` and `answer_start` of its answers differ in length"
        )
    return [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]


def _list(value: Any, key: str, place: str) -> list[Any]:
    """The objects in the list under `key`."""
    objects = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(objects, list) or not all(isinstance(entry, Mapping) for entry in objects):
        raise DataError(f"{place}: {key!r} is not a list of objects; {_FORM}")
    return objects
