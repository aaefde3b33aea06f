"""`trifold predict --task features`, and arrays as output."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.readers import folder_of, pictures_folder
from tests.text.folders import WORDS

import trifold as library

LINES = ["the quick brown fox", "fox", "a fox, the FOX"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder_of("embed", tmp_path_factory.mktemp("features") / "model")


def arrays(path):
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file}


def test_arrays_have_the_tokens_of_all_lines(trifold, model, tmp_path):
    out = tmp_path / "out.npz"
    stdin = "\n".join([LINES[0], "", *LINES[1:]]).encode()
    command = ("predict", str(model), "-", "--task", "features", "--layer", "1")
    done = trifold(*command, "--out", str(out), stdin=stdin)
    assert (done.code, done.out) == (0, ""), done.err
    found = arrays(out)
    pipeline = library.load(model)
    expected = pipeline.features(LINES, layer=1)
    sizes = [len(expected[0].ids), 0, *(len(one.ids) for one in expected[1:])]
    assert found["offsets"].tolist() == np.cumsum([0, *sizes]).tolist()
    vectors = np.concatenate([one.vectors.numpy() for one in expected])
    np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
    assert found["tokens"].tolist() == [token for one in expected for token in one.tokens]
    assert found["ids"].tolist() == [token for one in expected for token in one.ids]
    assert found["spans"][:2].tolist() == [[-1, -1], [0, 3]] and found["layer"] == 1
    np.testing.assert_allclose(found["sentences"][0], expected[0].pooled.numpy(), atol=1e-5)
    assert np.isnan(found["sentences"][1]).all()
    again = trifold(*command, "--out", str(out), stdin=stdin)
    assert again.code == 2 and "the file exists" in again.err
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_embeddings_of_a_table_are_an_array(trifold, model, tmp_path):
    table = tmp_path / "lines.csv"
    table.write_text("id,text\n1,the fox\n2,\n3,brown\n")
    done = trifold("predict", str(model), str(table), "--task", "embed", "--out", str(tmp_path / "o.npz"))  # fmt: skip
    assert done.code == 0, done.err
    found = arrays(tmp_path / "o.npz")
    expected = np.stack([one.numpy() for one in library.load(model).embed(["the fox", "brown"])])
    np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)
    assert found["offsets"].tolist() == [0, 1, 1, 2]


def test_pictures_have_a_vector_for_each_patch(trifold, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (20, 15), (9, 200, 90)).save(tmp_path / "a.png")
    folder = pictures_folder(tmp_path / "pictures")
    out = str(tmp_path / "o.npz")
    done = trifold("predict", str(folder), str(tmp_path / "a.png"), "--task", "features", "--out", out)  # fmt: skip
    assert done.code == 0, done.err
    found = arrays(out)
    assert found["tokens"][:2].tolist() == ["[CLS]", "patch 1"]
    assert len(found["vectors"]) == library.load(folder).config.n_patches + 1


def test_json_has_the_same_vectors(trifold, model):
    done = trifold("predict", str(model), LINES[0], "--task", "features", "--json")
    (line,) = done.out.splitlines()
    outputs = json.loads(line)["outputs"]
    expected = library.load(model).features(LINES[0])
    assert outputs["tokens"] == expected.tokens and outputs["spans"][1] == [0, 3]
    np.testing.assert_allclose(outputs["vectors"], expected.vectors.numpy(), atol=1e-5)


def test_a_word_is_compared_wherever_it_stands(trifold, model):
    done = trifold("predict", str(model), *LINES, "--word", "fox", "--layer", "2")
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert done.out.startswith("cosines of the vectors of 'fox' after layer 2\n")
    assert [row[0] for row in rows[-4:]] == ["1", "2", "3", "4"]
    assert rows[-4][-4] == rows[-1][-1] == "1.000" and rows[-4][-3] == rows[-3][-4]
    report = json.loads(
        trifold("predict", str(model), *LINES, "--word", "fox", "--layer", "2", "--json").out
    )
    assert [place["text"] for place in report["places"]] == [1, 2, 3, 3]
    assert report["cosines"][0][1] == pytest.approx(float(rows[-4][-3]), abs=6e-4)


def test_more_places_than_columns_are_named(trifold, model):
    done = trifold("predict", str(model), "fox " * 10, "--word", "fox")
    assert "2 other places with --json" in done.err
    assert max(map(len, done.out.splitlines())) <= 80


ERRORS = {
    "nowhere to go": (
        ("--task", "features"),
        "--task features gives a vector for every token: write them with --out FILE.npz",
    ),
    "text": (("--task", "features", "--out", "{here}/o.txt"), "write them with --out FILE.npz"),
    "no layer": (("--task", "features", "--json", "--layer", "3"), "layer 3: give a number"),
    "not of embed": (("--task", "embed", "--layer", "1"), "layer: not an option of embed"),
    "a word and a task": (("--task", "embed", "--word", "fox"), "--word prints a table of features"),
    "a word and a file": (("--word", "fox", "--out", "{here}/o.npz"), "leave --task and --out out"),
    "no word": (("--word", " "), "--word: the word is empty"),
    "unknown word": (("--word", "wolf"), "--word wolf: in none of the texts"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, model, tmp_path, arguments, message):
    words = (word.replace("{here}", str(tmp_path)) for word in arguments)
    done = trifold("predict", str(model), "the fox", *words)
    assert done.code in (1, 2) and done.out == "" and message in done.err
    assert not [*tmp_path.iterdir()]


def test_arrays_are_not_written_by_other_tasks(trifold, tmp_path):
    folder = folder_of("classify", tmp_path / "model")
    done = trifold("predict", str(folder), WORDS[0], "--out", str(tmp_path / "o.npz"))
    assert done.code == 2 and "arrays are written by the tasks features and embed" in done.err
