"""A run goes on with the files with which it was begun, whatever their names, or it is told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from trifold.data import FileDigest
from trifold.errors import DataError
from trifold.recipe import load_recipe
from trifold.train.resume import changed_files, check_same_data
from trifold.train.run_folder import RunFolder, data_files


def files(**names: str) -> dict[str, dict[str, FileDigest]]:
    """Of one key, by content. The names are those of the arguments, with / for __."""
    return {"data.train": {n.replace("__", "/"): FileDigest(1, 1, sha256) for n, sha256 in names.items()}}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (files(a="1", b="2"), files(a="1", b="2"), []),
        (files(a="1", b="2"), files(x__a="1", x__b="2"), []),
        (files(a="1", b="2"), files(x__a="1"), ["b: .* now missing"]),
        (files(a="1", b="2"), files(x__a="1", x__b="3"), ["x/b: the content", "b: .* now missing"]),
        (files(a="1", b="2"), files(a="2", b="1"), ["a: the content", "b: the content"]),
        (files(a="1"), files(a="1", b="2"), ["b: the content"]),
        (files(a="1"), files(a="1", b="1"), ["b: .* order of the files"]),
        (files(a="1", b="1"), files(a="1"), ["b: .* now missing|b: .* order of the files"]),
        (files(a="1", b="2", c="3"), files(b="2", c="3", d="1"), ["b: .* order of the files"]),
        ({}, files(a="1"), []),
        (files(a="1"), {}, ["a: .* now missing"]),
    ],
)
def test_content_and_order_decide_and_names_do_not(before, now, said):
    lines = list(changed_files(before, now))
    assert len(lines) == len(said)
    for line, pattern in zip(lines, said, strict=True):
        assert re.match(pattern, line), line


def test_a_file_that_moves_from_training_to_validation_is_another_file_in_both():
    before = {**files(a="1", b="2"), "data.valid": {"c": FileDigest(1, 1, "3")}}
    now = {**files(a="1"), "data.valid": {"b": FileDigest(1, 1, "2"), "c": FileDigest(1, 1, "3")}}
    assert len(list(changed_files(before, now))) == 2


# --- on the disk ---------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path):
    """Write a run's data down; gives what checks it once more."""

    def begun(recipe):
        folder = RunFolder(tmp_path)
        assert check_same_data(folder, recipe, changed=False) == []
        return lambda changed=False: check_same_data(folder, recipe, changed=changed)

    return begun


@pytest.fixture
def put(tmp_path):
    """Write files; gives their paths."""

    def put(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{name}\t{name}\n", encoding="utf-8")
        return [str(tmp_path / name) for name in names]

    return put


def recipe(**keys):
    return load_recipe("smoke", {"data.test": None, **{k.replace("__", "."): v for k, v in keys.items()}})


def test_validation_data_copied_over_training_data_is_refused(put, begun):
    train, valid = put("train.tsv", "valid.tsv")
    again = begun(recipe(data__train=train, data__valid=valid))
    shutil.copy(valid, train)
    with pytest.raises(DataError, match=r"train\.tsv: the content .*--data-changed"):
        again()
    assert len(again(changed=True)) == 1
    assert again() == []


def test_two_sides_that_are_swapped_are_refused(put, begun):
    one, two = map(Path, put("a.en", "a.de"))
    again = begun(recipe(data__train=f"{one},{two}", data__valid=f"{one},{two}"))
    held = one.read_bytes(), two.read_bytes()
    two.write_bytes(held[0]), one.write_bytes(held[1])
    with pytest.raises(DataError, match=r"a\.en: the content(.|\n)*a\.de: the content"):
        again()


def test_documents_whose_order_changes_are_refused(put, begun, tmp_path):
    put("text/1.txt", "text/2.txt", "text/3.txt")
    again = begun(
        recipe(data__train=str(tmp_path / "text"), data__valid=None, data__holdout=0.1, task__kind="causal")
    )
    (tmp_path / "text" / "1.txt").rename(tmp_path / "text" / "9.txt")
    with pytest.raises(DataError, match=r"2\.txt: the order of the files has changed"):
        again()


def test_data_that_is_moved_as_a_whole_is_the_same(put, begun, tmp_path, monkeypatch):
    put("here/1.txt", "here/2.txt")
    monkeypatch.setenv("TEXTS", str(tmp_path / "here"))
    again = begun(recipe(data__train="${TEXTS}", data__valid="${TEXTS}/2.txt"))
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setenv("TEXTS", str(tmp_path / "there"))
    assert again() == []


def test_the_parts_of_a_task_are_data_too(put, begun):
    copies, likes = put("copy.tsv", "like.tsv")
    parts = {
        "copy part": {"input": "{source}", "train": copies, "valid": copies},
        "like": {"input": "{source}", "train": likes, "valid": copies},
    }
    task = {"kind": "text-to-text", "parts": parts}
    mixed = recipe(task=task, data__train=None, data__valid=None)
    assert data_files(mixed)["task.parts.like.train"] == [likes]
    again = begun(mixed)
    Path(copies).write_text("other\tother\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"copy\.tsv: the content"):
        again()


def test_so_are_a_teacher_and_a_tokenizer(put, begun):
    weights, *_ = put("teacher/model/model.safetensors", "teacher/model/config.json", "teacher/recipe.yaml")
    own, *_ = put("own/tokenizer.json", "own/tokenizer_config.json", "own/notes.md")
    text = put("text.txt")[0]
    task = {"kind": "distill", "of": {"kind": "causal"}, "teacher": str(Path(weights).parents[1])}
    learning = recipe(task=task, tokenizer__file=str(Path(own).parent), data__train=text, data__valid=text)
    named = {key: [Path(name).name for name in names] for key, names in data_files(learning).items()}
    assert named["task.teacher"] == ["config.json", "model.safetensors"]
    assert named["tokenizer.file"] == ["tokenizer.json", "tokenizer_config.json"]
    again = begun(learning)
    for file in (weights, own):
        before = Path(file).read_bytes()
        Path(file).write_bytes(before + b"!")
        with pytest.raises(DataError, match=f"{Path(file).name}: the content"):
            again()
        Path(file).write_bytes(before)
        assert again() == []


def test_the_first_form_of_data_json_is_understood(put, begun, tmp_path):
    train, valid = put("train.tsv", "valid.tsv")
    again = begun(recipe(data__train=train, data__valid=valid))
    told = json.loads((tmp_path / "data.json").read_text("utf-8"))
    first = {name: each["sha256"] for files in told.values() for name, each in files.items()}
    (tmp_path / "data.json").write_text(json.dumps(first), encoding="utf-8")
    assert again() == []
    assert json.loads((tmp_path / "data.json").read_text("utf-8")) == told
    (tmp_path / "data.json").write_text(json.dumps(first), encoding="utf-8")
    shutil.copy(valid, train)
    with pytest.raises(DataError, match=r"train\.tsv: the content"):
        again()


def test_files_are_read_once_and_not_at_every_start(put, begun, monkeypatch):
    train, valid = put("train.tsv", "valid.tsv")
    again = begun(recipe(data__train=train, data__valid=valid))
    read, real = [], Path.open

    def watched(self, *arguments, **named):
        read.append(self.name)
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", watched)
    again()
    assert not {"train.tsv", "valid.tsv"} & set(read)
    Path(valid).write_text("other\tother\n", encoding="utf-8")
    read.clear()
    with pytest.raises(DataError):
        again()
    assert read.count("valid.tsv") == 1 and "train.tsv" not in read
