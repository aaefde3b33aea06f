"""Which changes of the data files a resumed run detects."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from trifold.data import FileDigest
from trifold.errors import DataError
from trifold.nn import ModelConfig
from trifold.recipe import load_recipe
from trifold.train.data_files import (
    changed_files,
    check_same_data,
    compare_data,
    data_digest,
    data_files,
    read_data_json,
)
from trifold.train.resume import check_same_labels
from trifold.train.run_folder import RunFolder


def files(**names: str) -> dict[str, dict[str, FileDigest]]:
    """The digests of the files of data.train; keyword arguments use __ for /."""
    return {
        "data.train": {
            n.replace("__", "/"): FileDigest(1, 1, sha256) for n, sha256 in names.items()
        }
    }


@pytest.mark.parametrize(
    ("before", "now", "messages"),
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
def test_changes_of_content_and_order_are_found_but_not_those_of_names(before, now, messages):
    lines = list(changed_files(before, now))
    assert len(lines) == len(messages)
    for line, pattern in zip(lines, messages, strict=True):
        assert re.match(pattern, line), line


def test_file_moved_from_training_to_validation_changes_both():
    before = {**files(a="1", b="2"), "data.valid": {"c": FileDigest(1, 1, "3")}}
    now = {**files(a="1"), "data.valid": {"b": FileDigest(1, 1, "2"), "c": FileDigest(1, 1, "3")}}
    assert len(list(changed_files(before, now))) == 2


@pytest.fixture
def record(tmp_path):
    """Record the data of a recipe; returns a function that compares it again."""

    def record(**keys):
        folder, recipe = RunFolder(tmp_path), recipe_of(**keys)
        assert check_same_data(folder, recipe, changed=False) == []
        return lambda changed=False: check_same_data(folder, recipe, changed=changed)

    return record


@pytest.fixture
def put(tmp_path):
    """Write files; returns their paths."""

    def put(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{name}\t{name}\n", encoding="utf-8")
        return [str(tmp_path / name) for name in names]

    return put


def recipe_of(**keys):
    return load_recipe(
        "smoke", {"data.test": None, **{k.replace("__", "."): v for k, v in keys.items()}}
    )


def test_validation_data_copied_over_training_data_is_rejected(put, record):
    train, valid = put("train.tsv", "valid.tsv")
    again = record(data__train=train, data__valid=valid)
    shutil.copy(valid, train)
    with pytest.raises(DataError, match=r"train\.tsv: the content .*data_changed=True"):
        again()
    assert len(again(changed=True)) == 1
    assert again() == []


def test_a_comparison_writes_nothing(put, record, tmp_path):
    (train,) = put("train.tsv")
    again = record(data__train=train, data__valid=train)
    Path(train).write_text("another\tone\n", encoding="utf-8")
    recorded = (tmp_path / "data.json").read_bytes()
    recipe = recipe_of(data__train=train, data__valid=train)
    compared = compare_data(RunFolder(tmp_path), recipe, changed=True)
    assert len(compared.messages) == 1
    assert (tmp_path / "data.json").read_bytes() == recorded
    assert len(again(changed=True)) == 1
    assert (tmp_path / "data.json").read_bytes() != recorded


def test_swapped_sides_are_rejected(put, record):
    one, two = map(Path, put("a.en", "a.de"))
    again = record(data__train=f"{one},{two}", data__valid=f"{one},{two}")
    source, target = one.read_bytes(), two.read_bytes()
    one.write_bytes(target)
    two.write_bytes(source)
    with pytest.raises(DataError, match=r"a\.en: the content(.|\n)*a\.de: the content"):
        again()


def test_other_order_of_documents_is_rejected(put, record, tmp_path):
    put("text/1.txt", "text/2.txt", "text/3.txt")
    again = record(
        data__train=str(tmp_path / "text"), data__valid=None, data__holdout=0.1, task__kind="causal"
    )
    (tmp_path / "text" / "1.txt").rename(tmp_path / "text" / "9.txt")
    with pytest.raises(DataError, match=r"2\.txt: the order of the files has changed"):
        again()


def test_moved_folder_is_the_same_data(put, record, tmp_path, monkeypatch):
    put("here/1.txt", "here/2.txt")
    monkeypatch.setenv("TEXTS", str(tmp_path / "here"))
    again = record(data__train="${TEXTS}", data__valid="${TEXTS}/2.txt")
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setenv("TEXTS", str(tmp_path / "there"))
    assert again() == []


def test_files_of_task_parts_are_checked(put, record):
    copies, likes = put("copy.tsv", "like.tsv")
    parts = {
        "copy part": {"input": "{source}", "train": copies, "valid": copies},
        "like": {"input": "{source}", "train": likes, "valid": copies},
    }
    task = {"kind": "text-to-text", "parts": parts}
    keys = {"task": task, "data__train": None, "data__valid": None}
    assert [*data_files(recipe_of(**keys))["task.parts.like.train"]] == [likes]
    again = record(**keys)
    Path(copies).write_text("other\tother\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"copy\.tsv: the content"):
        again()


def test_files_of_teacher_and_tokenizer_are_checked(put, record):
    weights, *_ = put(
        "teacher/model/model.safetensors", "teacher/model/config.json", "teacher/recipe.yaml"
    )
    own, *_ = put("own/tokenizer.json", "own/tokenizer_config.json", "own/notes.md")
    text = put("text.txt")[0]
    task = {"kind": "distill", "of": {"kind": "causal"}, "teacher": str(Path(weights).parents[1])}
    keys = {"task": task, "model__shape": "decoder", "tokenizer__file": str(Path(own).parent)}
    keys |= {"data__train": text, "data__valid": text}
    files = data_files(recipe_of(**keys))
    named = {key: [Path(name).name for name in names] for key, names in files.items()}
    assert named["task.teacher"] == ["config.json", "model.safetensors"]
    assert named["tokenizer.file"] == ["tokenizer.json", "tokenizer_config.json"]
    again = record(**keys)
    for file in (weights, own):
        before = Path(file).read_bytes()
        Path(file).write_bytes(before + b"!")
        with pytest.raises(DataError, match=f"{Path(file).name}: the content"):
            again()
        Path(file).write_bytes(before)
        assert again() == []


def test_only_changed_files_are_read_again(put, record, monkeypatch):
    train, valid = put("train.tsv", "valid.tsv")
    again = record(data__train=train, data__valid=valid)
    read, real = [], os.open

    def watched(path, *arguments, **named):
        read.append(Path(path).name)
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", watched)
    again()
    assert not {"train.tsv", "valid.tsv"} & set(read)
    Path(valid).write_text("other\tother\n", encoding="utf-8")
    read.clear()
    with pytest.raises(DataError):
        again()
    assert read.count("valid.tsv") == 1 and "train.tsv" not in read


@pytest.mark.parametrize(
    ("content", "labels", "is_same"),
    [
        ({"id2label": {"0": "good", "1": "bad"}}, ("good", "bad"), True),
        ({"id2label": {"0": "good", "1": "bad"}}, ("bad", "good"), False),
        ({"id2label": {"0": "good", "1": "bad"}}, ("good", "odd"), False),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("bad", "good"), True),  # without names
        ({"label_names": ["good", "bad"]}, ("good", "bad"), True),
        ({"label_names": ["good", "bad"]}, ("good", "odd"), False),
        ({"id2label": 3}, ("bad", "good"), True),  # damaged: written again
        (None, ("bad", "good"), True),  # no validation yet
    ],
)
def test_a_run_is_continued_with_the_labels_of_its_model(tmp_path, content, labels, is_same):
    folder = RunFolder(tmp_path)
    if content is not None:
        folder.model.mkdir()
        (folder.model / "config.json").write_text(json.dumps(content), encoding="utf-8")
    expected = nullcontext() if is_same else pytest.raises(DataError, match="the labels are now '")
    with expected:
        check_same_labels(folder, ModelConfig(label_names=labels, n_labels=2))


# --- folders, archives, images, rows ---------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """A folder of four images of two classes, and the keys of a recipe that learns from it."""
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        file = tmp_path / "set" / "ab"[number // 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (8, 8), 60 * number).save(file)
    return tmp_path / "set"


def of_images(source):
    return {
        "task": {"kind": "images"},
        "model": {
            "shape": "encoder",
            "image_size": [8, 8],
            "patch_size": [4, 4],
            "max_positions": 5,
        },
        "data__train": str(source),
        "data__valid": None,
        "data__holdout": 0.5,
    }


def blacken(folder):
    black = (folder / "a" / "0.png").read_bytes()
    for file in folder.rglob("*.png"):
        file.write_bytes(black)
    return ["a/1.png: the content", "b/2.png: the content", "b/3.png: the content"]


def move_to_other_class(folder):
    """The order of the contents does not change."""
    (folder / "a" / "1.png").rename(folder / "b" / "1.png")
    return ["b/1.png: the content", "a/1.png: .* now missing"]


def rename_class(folder):
    (folder / "b").rename(folder / "c")
    return ["c/2.png: the content", "c/3.png: the content", *["b/.*missing"] * 2]


def add_image(folder):
    shutil.copy(folder / "b" / "3.png", folder / "b" / "4.png")
    return ["b/4.png: the order of the files"]


def remove_image(folder):
    (folder / "b" / "2.png").unlink()
    return ["b/2.png: .* now missing"]


@pytest.mark.parametrize(
    "change", [blacken, move_to_other_class, rename_class, add_image, remove_image]
)
def test_changed_images_are_named(change, pictures, record):
    again = record(**of_images(pictures))
    (pictures / "a" / "notes.txt").write_text("not learned from", encoding="utf-8")
    (pictures / ".DS_Store").write_bytes(b"nor this")
    assert again() == []
    expected = change(pictures)
    found = again(changed=True)
    for line, pattern in zip(found, expected, strict=True):
        assert re.match(f"{pictures}/{pattern}", line), line
    assert again() == []


def test_many_changed_images_are_counted(pictures, record):
    for number in range(20):
        shutil.copy(pictures / "a" / "0.png", pictures / "a" / f"x{number}.png")
    again = record(**of_images(pictures))
    for file in pictures.rglob("x*.png"):
        file.write_bytes(b"other")
    with pytest.raises(DataError, match="and 10 more files; restore the old data") as caught:
        again()
    assert str(caught.value).count("\n") == 10


def test_a_moved_folder_of_images_is_the_same_data(pictures, record, monkeypatch):
    monkeypatch.setenv("IMAGES", str(pictures))
    again = record(**of_images("${IMAGES}"))
    pictures.rename(pictures.with_name("there"))
    monkeypatch.setenv("IMAGES", str(pictures.with_name("there")))
    assert again() == []


def test_only_changed_images_are_read_again(pictures, record, monkeypatch):
    again = record(**of_images(pictures))
    read, real = [], Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *a, **k: read.append(self.name) or real(self, *a, **k)
    )
    again()
    assert not {"0.png", "1.png", "2.png", "3.png"} & {*read}


def test_runs_whose_images_were_not_recorded_go_on(pictures, tmp_path, monkeypatch):
    """By the version before, which wrote the digest of no data into checkpoints."""
    folder, recipe = RunFolder(tmp_path), recipe_of(**of_images(pictures))
    monkeypatch.setattr(RunFolder, "identity", lambda self: {"data": data_digest({})})
    assert check_same_data(folder, recipe, changed=False) == []
    blacken(pictures)
    assert len(check_same_data(folder, recipe, changed=True)) == 3


def test_labels_of_idx_files_are_checked(put, record, tmp_path):
    put("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    again = record(**of_images(tmp_path / "train-images-idx3-ubyte"))
    (tmp_path / "train-labels-idx1-ubyte").write_text("other", encoding="utf-8")
    with pytest.raises(DataError, match="labels-idx1-ubyte: the content has changed"):
        again()


def of_rows(source):
    return {"task": {"kind": "classify"}, "data__train": source, "data__valid": None} | {
        "data__holdout": 0.5,
        "model": {"shape": "encoder"},
    }


def test_folders_and_archives_of_tables_are_checked(put, record, tmp_path):
    put("set/a.csv", "set/b.tsv", "set/notes.txt")
    again = record(**of_rows(str(tmp_path / "set")))
    put("set/more.txt", "set/.hidden.csv")
    assert again() == []
    (tmp_path / "set" / "b.tsv").write_text("other", encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.tsv: the content has changed"):
        again()
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.csv", "text,label")
        file.writestr("b.csv", "text,label")
    (tmp_path / "data.json").unlink()
    again = record(**of_rows(str(archive)))
    archive.write_bytes(archive.read_bytes().replace(b"label", b"other"))
    with pytest.raises(DataError, match=r"^\S*set\.zip: the content has changed.*; restore"):
        again()


def test_rows_in_memory_and_on_the_hub_are_checked(record, monkeypatch, tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    again = record(**of_rows(rows))
    rows[0]["label"] = 0
    with pytest.raises(DataError, match=r"python:train: the content has changed"):
        again()
    (tmp_path / "data.json").unlink()
    library = SimpleNamespace(load_dataset=lambda *names, split: rows)
    monkeypatch.setitem(sys.modules, "datasets", library)
    again = record(**of_rows("hub:any:train"))
    assert again() == []
    rows[1]["text"] = "c"
    with pytest.raises(DataError, match=r"hub:any:train: the content has changed"):
        again()


def test_images_whose_paths_are_in_memory_are_checked(pictures, record):
    files = sorted(pictures.rglob("*.png"))
    rows = [{"image": str(file), "label": file.parent.name} for file in files]
    again = record(**of_images("x") | {"data__train": rows})
    assert again() == []
    blacken(pictures)
    assert len(again(changed=True)) == 3
    rows[0]["label"] = "b"
    assert [line.partition(":")[0] for line in again(changed=True)][-1] == "python"


def test_digests_of_other_types_are_not_read(tmp_path):
    folder = RunFolder(tmp_path)
    for value in ([0], None, 7):
        digest = {"size": 1, "mtime_ns": 2, "sha256": value}
        folder.data.write_text(json.dumps({"data.train": {"a.txt": digest}}), encoding="utf-8")
        assert read_data_json(folder) == {}
