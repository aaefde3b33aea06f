"""`trifold look --matrices FILE`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "attention.yaml"
    path.write_text("X: [[1, 0], [0, 1]]\nW_v: [[1, 2], [3, 4]]\nqueries: [a, b]\n")
    return path


def test_every_step_is_a_table(trifold, file, tmp_path):
    picture = tmp_path / "a.png"
    done = trifold("look", "--matrices", str(file), "--out", str(picture))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line for line in lines if line[1:3] == ". "] == [
        "1. Q = X", "2. K = X", "3. V = X · W_v", "4. products = Q Kᵀ",
        "5. scores = Q Kᵀ · 1/√d_k = Q Kᵀ · 0.7071", "6. weights = softmax of each row",
        "7. output = weights · V",
    ]  # fmt: skip
    assert [line.split() for line in lines[-2:]] == [
        ["a", "1.6605", "2.6605"], ["b", "2.3395", "3.3395"]
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_has_all_numbers_and_a_large_matrix_is_cut(trifold, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("\n".join(",".join(["1"] * 10) for _ in range(14)))
    done = trifold("look", "--matrices", str(path))
    assert "… 2 rows and 2 columns more, with --json" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    report = json.loads(trifold("look", "--matrices", str(path), "--json").out)
    assert len(report["steps"][-1]["matrices"][0]) == 14


ERRORS = {
    "no model": ((), "MODEL is missing: name a run"),
    "a model": (("teaching", "--matrices", "{file}"), "leave out teaching"),
    "an option": (("--matrices", "{file}", "--layer", "1"), "leave out --layer 1"),
    "no picture": (("--matrices", "{file}", "--out", "x.txt"), "x.txt: not a picture format"),
    "the file": (("--matrices", "{file}", "--out", "{file}"), "is the file that is read"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, file, arguments, message):
    done = trifold("look", *(word.replace("{file}", str(file)) for word in arguments))
    assert (done.code, done.out) == (2, "") and message in done.err
