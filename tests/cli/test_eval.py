from __future__ import annotations

import json

import pytest
import torch

from trifold.pipeline import Pipeline
from trifold.scores import SCORES
from trifold.text import TokenizerSettings, train_tokenizer

pytestmark = pytest.mark.slow


def test_default_data_is_the_test_set_of_the_run(trifold, run):
    done = trifold("eval", str(run))
    assert done.code == 0
    assert [line.split(" (")[0].rpartition(" ")[0] for line in done.out.splitlines()] == [
        "BLEU",
        "chrF2",
        "exact match",
    ]
    assert done.out.count("nrefs:1") == 3


def test_the_scores_are_those_of_the_outputs(trifold, run, tmp_path):
    sources, references, ours = (
        ["one", "two", "", "forty two"],
        ["1", "2", "3", "4 2"],
        tmp_path / "ours.txt",
    )
    files = [tmp_path / "a.src", tmp_path / "a.ref"]
    for file, lines in zip(files, (sources, references), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    named = [str(file) for file in files]
    done = trifold(
        "eval", str(run), *named, "--tokenize", "none", "--lowercase", "--json", "--out", str(ours)
    )
    report = json.loads(done.out)
    outputs = ours.read_text("utf-8").splitlines()
    assert len(outputs) == report["sentences"] == 4
    assert outputs[2] == ""
    for name, score in SCORES.items():
        options = {"tokenize": "none"} if name == "bleu" else {}
        expected = score(outputs, references, lowercase=True, **options)
        assert report["scores"][name] == {"value": expected.value, "signature": expected.signature}


def test_columns_of_a_table_are_chosen_by_name(trifold, run, tmp_path):
    table = tmp_path / "pairs.tsv"
    table.write_text("digits\twords\n1\tone\n2\ttwo\n", encoding="utf-8")
    done = trifold(
        "eval", str(run), str(table), "--source", "words", "--target", "digits", "--json"
    )
    assert (done.code, json.loads(done.out)["sentences"]) == (0, 2)


def test_split_option(trifold, run):
    report = json.loads(trifold("eval", str(run), "--split", "valid", "--json").out)
    assert report["sentences"] == 28


BAD = {
    "three files": (("a", "b", "c"), 2, "3 data files"),
    "no such file": (("a.en", "b.en"), 1, "a.en"),
    "one file that does not exist": (("nosuch.txt",), 1, "nosuch.txt: no such file"),
    "a file name that is not UTF-8": (("caf\udce9",), 2, "DATA: character 4 is not valid UTF-8"),
    "no such split": (("--split", "train"), 2, "choose test or valid"),
    "no such tokenizer": (("--tokenize", "14a"), 2, "13a"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(trifold, run, case):
    arguments, code, message = BAD[case]
    done = trifold("eval", str(run), *arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.splitlines()[-1].startswith("error: ")
    assert message in done.err


def test_model_without_a_run_needs_data(trifold, run, tmp_path):
    (tmp_path / "model").symlink_to(run / "model")
    done = trifold("eval", str(tmp_path / "model"))
    assert done.code == 2
    assert "name the data" in done.err


def test_a_loss_that_is_not_finite_is_an_error(trifold, make_model, tmp_path):
    tokenizer = train_tokenizer(["some text"], TokenizerSettings(kind="char", min_frequency=1))
    model = make_model(shape="decoder", vocab_size=tokenizer.vocab_size)
    with torch.no_grad():
        model.decoder_embeddings.tokens.weight.fill_(float("nan"))
    Pipeline(model, tokenizer).save(tmp_path / "model")
    (tmp_path / "a.txt").write_text("some text", encoding="utf-8")
    done = trifold("eval", str(tmp_path / "model"), str(tmp_path / "a.txt"), "--json")
    assert (done.code, done.out) == (1, "")
    assert "error: the model computes NaN or infinity" in done.err


def test_an_output_that_is_the_data_is_refused(run, trifold, tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one\ntwo\n", "utf-8")
    files = [str(tmp_path / name) for name in ("a.en", "a.de")]
    for data in (files, [",".join(files)]):
        done = trifold("eval", str(run), *data, "--out", files[1])
        assert done.code == 2 and "a.de: is the file that is read" in done.err
        assert (tmp_path / "a.de").read_text("utf-8") == "one\ntwo\n"
