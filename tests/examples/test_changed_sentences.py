"""The example that makes the data of the first stages of the recipe `mrpc`."""

from __future__ import annotations

import gzip
from itertools import pairwise, product

import pytest
from examples import changed_sentences

from trifold.recipe import load_recipe

NAMES = ("king", "queen", "boat"), ("Perth", "Rome"), ("town", "home")
SENTENCES = ["the {} of {} was seen near {} yesterday".format(*names) for names in product(*NAMES)]
OUTPUTS = ["pairs.tsv", "valid.tsv", "sts.tsv"]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    for name in ("mrpc", "newstest_ende", "stsb"):
        (tmp_path / name).mkdir()
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    table = "".join(f"1\t0\t0\t{a}\t{b}\n" for a, b in pairwise(SENTENCES))
    (tmp_path / "mrpc" / "train.tsv").write_text(header + table, encoding="utf-8")
    for part in ("val", "test"):
        (tmp_path / "mrpc" / f"{part}.tsv").write_text(
            f"{header}0\t1\t2\tIn {part}.\tAlso, in {part}\n", "utf-8"
        )
    for year in range(2008, 2014):
        (tmp_path / "newstest_ende" / f"newstest{year}.en.gz").write_bytes(
            gzip.compress(SENTENCES[0].encode())
        )
    scores = "g\t3.0\tIn TEST\tother\ng\t1.0\tkept one\tkept two\ng\t2.0\tother\talso in val\n"
    (tmp_path / "stsb" / "train.tsv").write_text(
        "genre\tscore\tsentence1\tsentence2\n" + scores, "utf-8"
    )
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    changed_sentences.main([*OUTPUTS, "--count", "200", "--holdout", "20"])
    return [(tmp_path / name).read_text("utf-8").splitlines()[1:] for name in OUTPUTS]


def test_labels_are_functions_of_the_shared_words(rows):
    train, valid, _ = ([line.split("\t") for line in part] for part in rows)
    assert (len(train), len(valid)) == (200 + len(SENTENCES) - 1 - 20, 20)
    for label, first, second in train + valid:
        shared = changed_sentences.overlap(first.split(), second.split())
        assert int(label) == (shared >= changed_sentences.THRESHOLD)
    assert {label for label, *_ in train} == {"0", "1"}


def test_sentences_of_the_tested_parts_are_left_out(rows):
    assert rows[2] == ["1.0\tkept one\tkept two"]


def test_the_recipe_reads_the_files():
    recipe = load_recipe("mrpc")
    similar, pairs = recipe.pretrain["data"], recipe.pretrain["pretrain"]["data"]
    assert [pairs["train"], pairs["valid"], similar["train"]] == [
        "changed.tsv",
        "changed-valid.tsv",
        "sts.tsv",
    ]
