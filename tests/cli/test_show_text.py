"""`trifold show MODEL --text`: the tokens of a text."""

from __future__ import annotations

import json

import pytest

from trifold.text import TokenizerSettings, train_tokenizer


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    size = TokenizerSettings(kind="bpe", vocab_size=12)
    train_tokenizer(["aaabdaaabac"] * 20, size).save(folder)
    (folder / "empty").mkdir()
    (folder / "mine.yaml").write_text(
        f"task: {{kind: causal}}\ndata: {{train: x.txt}}\ntokenizer: {{file: {folder}}}\n"
    )
    return folder


@pytest.mark.parametrize("name", ["", "tokenizer.json", "mine.yaml"])
def test_tokens_and_merges_are_printed(trifold, files, name):
    done = trifold("show", str(files / name), "--text", "aaabdaaabac")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["2", "11", "aaab", "0–4", '"aaab"'] in [line.split() for line in lines]
    assert lines[-1].split() == "3 aa + ab 3 ▁ aaab d aaab a c".split()
    assert "6 tokens, 11 characters, 11 bytes" in lines


def test_json_has_the_same(trifold, files):
    report = json.loads(trifold("show", str(files), "--text", "ab ab", "--json").out)
    assert [token["token"] for token in report["tokens"]] == ["▁", "ab", "▁", "ab"]
    assert [token["bytes"] for token in report["tokens"]] == [[0, 1], [0, 2], [3, 4], [3, 5]]
    assert report["words"][1]["tokens"] == [2, 4]
    assert report["words"][1]["merges"] == [
        {"pair": ["a", "b"], "rank": 2, "pieces": ["▁", "ab"]}
    ]  # fmt: skip


ERRORS = {
    "no text": (("{files}", "--text", ""), "--text: the text is empty"),
    "no model": (("--text", "a"), "--text: name the MODEL"),
    "too long": (("{files}", "--text", "a" * 100_001), "at most 100,000 are shown"),
    "not UTF-8": (("{files}", "--text", "a\udce9"), "--text: character 2 is not valid UTF-8"),
    "a recipe": (("demo", "--text", "a"), "demo: a recipe trains its tokenizer with the model"),
    "a preset": (("bert-base", "--text", "a"), "bert-base: a preset has no tokenizer"),
    "no tokenizer": (("{files}/empty", "--text", "a"), "the folder has no tokenizer"),
    "a size": (("{files}", "--text", "a", "--length", "8"), "--length: --text does not use it"),
    "a change": (("demo", "model.d_ff=4", "--text", "a"), "model.d_ff=4: --text does not use it"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(trifold, files, arguments, message):
    done = trifold("show", *(word.replace("{files}", str(files)) for word in arguments))
    assert (done.code, done.out) == (2, "") and message in done.err
