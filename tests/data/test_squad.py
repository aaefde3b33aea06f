"""Questions in the JSON of SQuAD: every answer stands where it claims to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trifold.data import DataSettings, Role, Rows, read_records
from trifold.data.squad import check_answers
from trifold.errors import DataError

ROLES = {
    name: Role((name,), lambda value, place: value)
    for name in ("id", "question", "context", "answers")
}
CONTEXT = "Die Straße 😀 ist lang."


def read(folder: Path, content: Any) -> Rows:
    path = folder / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_records(str(path), DataSettings(), ROLES)


def squad(*questions: dict[str, Any], context: Any = CONTEXT) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [*questions]}]}]}


def question(name: str = "q", text: str = "lang", start: Any = 17, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "question": "Wie?",
        "answers": [{"text": text, "answer_start": start}],
        **more,
    }


def test_questions_of_both_versions(tmp_path: Path) -> None:
    unknown = {
        "id": 7,
        "question": "Wo?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [{}],
    }
    records = read(tmp_path, squad(question(), question("p", is_impossible=False), unknown))
    assert records.columns == {
        "id": ["q", "p", "7"], "question": ["Wie?", "Wie?", "Wo?"], "context": [CONTEXT] * 3,
        "answers": [[{"text": "lang", "start": 17}], [{"text": "lang", "start": 17}], []],
    }  # fmt: skip
    assert records.lines == [1, 2, 3]


def test_answers_of_hub_datasets_are_two_lists() -> None:
    found = check_answers({"text": ["lang", "Die"], "answer_start": [17, 0]}, CONTEXT, "row 1")
    assert found == [{"text": "lang", "start": 17}, {"text": "Die", "start": 0}]
    with pytest.raises(DataError, match=r"row 1: the lists .* differ in length"):
        check_answers({"text": ["lang"], "answer_start": []}, CONTEXT, "row 1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            squad(question(start=18)),
            r"a\.json, question 'q': the answer 'lang' is not at character 18",
        ),
        (squad(question(start=-5)), "not at character -5"),
        (squad(question(start=900)), "not at character 900"),
        (
            squad(question(text="kurz")),
            "the answer 'kurz' is not at character 17 of its context, where 'lang' stands",
        ),
        (squad(question(start="17")), "answer_start of 'lang' is '17', expected an integer"),
        (squad(question(start=True)), "expected an integer"),
        (
            squad(question(is_impossible=True)),
            "question 'q': is_impossible is true, but it has 1 answers",
        ),
        (
            squad({"id": "q", "question": "?", "answers": [], "is_impossible": False}),
            "but it has 0 answers",
        ),
        (squad(question(), question()), "question 'q': the id occurs twice"),
        (squad({"id": "q", "answers": []}), "question 'q': its text is null"),
        (squad({"id": "q", "question": "?"}), "question 'q': 'answers' is not a list of objects"),
        (
            squad({"id": "q", "question": "?", "answers": ["lang"]}),
            "'answers' is not a list of objects",
        ),
        (squad(question(), context=None), "the context after question 0 is null"),
        (squad(), "no row is left"),
        (["a"], "'array' is not a list of objects"),
        ({"data": [{"context": "a"}]}, "'paragraphs' is not a list of objects"),
        ('{"data": [}', r"a\.json:1:11: not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_questions_name_the_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("file", "count"), [("squad_subset/dev.json", 432), ("xquad/xquad.en.json", 1190)]
)
def test_public_datasets_are_read(data_folder: Path, file: str, count: int) -> None:
    records = read_records(str(data_folder / file), DataSettings(), ROLES)
    assert len(records) == count
    rows = zip(records.columns["context"], records.columns["answers"], strict=True)
    assert all(
        context[a["start"] :].startswith(a["text"]) for context, answers in rows for a in answers
    )
