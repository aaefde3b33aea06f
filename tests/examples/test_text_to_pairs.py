"""The examples that make training data from plain text."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from examples import cloze_questions, translation_pairs

from trifold.recipe import load_recipe

TEXT = "In 1908 the engineer Ada Stone built a long bridge over the River Tay in cold weather.\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text('A "dog" runs.\n\nThe\tcat\n', encoding="utf-8")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"Ein Hund rennt.\nleer\nDie Katze\n"))
    (tmp_path / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    row = {"source": [TEXT, "An older castle stands\nnear the northern gate of Perth today."]}
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))


@pytest.mark.usefixtures("write")
def test_tables_hold_each_complete_pair_of_lines(tmp_path, capsys):
    files = ["a.en", "a.de.gz"]
    translation_pairs.main(
        ["out.tsv", "valid.tsv", "--train", *files, "--train", *files, "--valid", *files]
    )
    assert capsys.readouterr().out == "4 pairs in out.tsv, 2 in valid.tsv\n"
    rows = ["A ''dog'' runs.\tEin Hund rennt.", "The cat\tDie Katze"]
    head, *valid = (tmp_path / "valid.tsv").read_text(encoding="utf-8").splitlines()
    assert (head, valid) == ("sentence1\tsentence2", rows)
    assert sorted((tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()[1:]) == sorted(
        rows * 2
    )


@pytest.mark.usefixtures("write")
def test_files_of_unequal_length_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="longer"):
        list(translation_pairs.read_pairs("a.en", "text.txt"))


@pytest.mark.usefixtures("write")
def test_answers_are_in_their_contexts_and_a_seed_draws_the_same_questions(tmp_path):
    outputs = ["out.json", "valid.json"]
    texts = ["text.txt", "rows.jsonl.gz", "--count", "60", "--holdout", "20"]
    cloze_questions.main([*outputs, *texts])
    first = [(tmp_path / name).read_text(encoding="utf-8") for name in outputs]
    cloze_questions.main([*outputs, *texts])
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in outputs] == first
    paragraphs = [each for text in first for each in json.loads(text)["data"][0]["paragraphs"]]
    questions = [paragraph["qas"][0] for paragraph in paragraphs]
    assert [len(json.loads(text)["data"][0]["paragraphs"]) for text in first] == [40, 20]
    assert [question["id"] for question in questions] == [str(n) for n in range(60)]
    assert len({question["question"] for question in questions}) > 30
    for paragraph, question in zip(paragraphs, questions, strict=True):
        [answer] = question["answers"]
        assert (
            paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
            and answer["text"]
        )
        assert question["question"].endswith(" ?") and len(paragraph["context"]) <= 1000
    assert cloze_questions.read_contexts("out.json") == [
        each["context"] for each in paragraphs[:40]
    ]


def test_a_question_keeps_the_order_of_the_words_that_it_keeps():
    words = [word[0] for word in cloze_questions.WORD.finditer(TEXT)]
    drawn = [cloze_questions.draw_question(TEXT, random.Random(seed)) for seed in range(50)]
    for question, answer, start in filter(None, drawn):
        kept = [word for word in question.removesuffix(" ?").split() if word in words]
        assert TEXT[start:].startswith(answer) and {*answer.split()}.isdisjoint(
            set(kept) - {"the", "in", "In"}
        )


@pytest.mark.parametrize(("name", "example"), [("stsb", "pairs"), ("squad-subset", "cloze")])
def test_recipes_read_the_files_that_the_examples_write(name, example):
    data = load_recipe(name).pretrain["data"]
    assert [data[key].partition(".")[0] for key in ("train", "valid")] == [
        example,
        f"{example}-valid",
    ]
