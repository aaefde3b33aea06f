"""`trifold eval A --against B`."""

from __future__ import annotations

import json

import pytest

from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

pytestmark = pytest.mark.slow

TEXT = "some text of a few words\nand another line\n"


def new_tokenizer(text=TEXT):
    return train_tokenizer([text], TokenizerSettings(kind="char", min_frequency=1))


@pytest.fixture
def save(make_model, tmp_path):
    """A function that saves a new model of a text and returns its folder."""

    def save(name, text=TEXT, **values):
        tokenizer = new_tokenizer(text)
        model = make_model(vocab_size=tokenizer.vocab_size, **values)
        Pipeline(model, tokenizer).save(tmp_path / name)
        return str(tmp_path / name)

    return save


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, "utf-8")
    return str(file)


def test_language_models(trifold, save, data):
    a, b = save("a", shape="decoder"), save("b", shape="decoder")
    done = trifold("eval", a, data, "--documents", "line", "--against", b, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["against"] == b
    assert report["kl"] > 0
    assert report["kl_low"] < report["kl"] < report["kl_high"]
    alone = json.loads(trifold("eval", b, data, "--documents", "line", "--json").out)
    assert report["perplexity_against"] == pytest.approx(alone["scores"]["perplexity"], rel=1e-4)


def test_weights_are_those_of_the_model_alone(trifold, save, data):
    a = save("a", shape="decoder")
    same = trifold("eval", a, data, "--against", a)
    assert same.out.startswith("KL divergence 0.00000 nats per token")
    assert "equal top tokens 100.00 %" in same.out
    small = json.loads(trifold("eval", a, data, "--weights", "int8", "--against", a, "--json").out)
    assert 0 < small["kl"] < 0.01
    both = ("--weights", "int8", "--against-weights", "int8")
    assert json.loads(trifold("eval", a, data, *both, "--against", a, "--json").out)["kl"] == 0
    other = ("--dtype", "bf16", "--against-dtype", "fp32")
    assert json.loads(trifold("eval", a, data, *other, "--against", a, "--json").out)["kl"] > 0
    equal = ("--dtype", "bf16")
    assert json.loads(trifold("eval", a, data, *equal, "--against", a, "--json").out)["kl"] == 0


def test_run_of_a_translator(trifold, run):
    report = json.loads(trifold("eval", str(run), "--against", str(run / "model"), "--json").out)
    assert report["kl"] == 0 and report["tokens"] > 28


def test_translator_without_a_run(trifold, save, tmp_path):
    a, b = save("a", shape="encoder-decoder"), save("b", shape="encoder-decoder")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\nsome text\ta few words\n", "utf-8")
    report = json.loads(trifold("eval", a, str(pairs), "--against", b, "--json").out)
    assert report["tokens"] == len("a few words") + 1
    assert report["kl"] > 0


def test_vectors_of_encoders(trifold, save, data):
    a, b = save("a", shape="encoder", heads=[]), save("b", shape="encoder", heads=[])
    done = trifold("eval", a, data, "--against", a)
    assert done.out.splitlines() == ["cosine 1.000000", "cosine, minimum 1.000000"]
    report = json.loads(trifold("eval", a, data, "--against", b, "--json").out)
    assert report["texts"] == 2
    assert -1 <= report["cosine_minimum"] < report["cosine"] < 1


def test_different_tokens_are_named(trifold, save, data):
    a = save("a", shape="decoder")
    b = save("b", text=TEXT.replace("w", "W"), shape="decoder")
    done = trifold("eval", a, data, "--against", b)
    assert done.code == 2
    error = " ".join(done.err.split())
    assert "have different tokenizers: token 11 is 'd' and 'W'" in error


def test_texts_that_are_divided_differently_are_named(trifold, make_model, data, tmp_path):
    tokenizer = train_tokenizer([TEXT], TokenizerSettings(kind="byte-bpe", vocab_size=270))
    names = [tmp_path / "a", tmp_path / "b"]
    for name in names:
        model = make_model(shape="decoder", vocab_size=tokenizer.vocab_size)
        Pipeline(model, tokenizer).save(name)
    file = names[1] / "tokenizer.json"
    document = json.loads(file.read_text("utf-8"))
    document["model"]["merges"] = []
    file.write_text(json.dumps(document), "utf-8")
    done = trifold("eval", str(names[0]), data, "--against", str(names[1]))
    assert done.code == 2
    assert "they divide 'some text of" in " ".join(done.err.split())


REFUSED = {
    "another size": ({"text": TEXT + "xyz", "shape": "decoder"}, (), "vocab_size is"),
    "another shape": ({"shape": "encoder"}, (), "its shape is encoder"),
    "fewer positions": ({"shape": "decoder", "max_positions": 9}, (), "at most 9 tokens"),
    "an option without effect": ({"shape": "decoder"}, ("--num-beams", "2"), "--num-beams has no"),
    "a report": ({"shape": "decoder"}, ("--report", "folder"), "--report has no effect"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(trifold, save, data, case):
    values, options, message = REFUSED[case]
    a, b = save("a", shape="decoder"), save("b", **values)
    done = trifold("eval", a, data, "--against", b, *options)
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.split())


def test_a_classifier_is_refused(trifold, save, data):
    labels = {"n_labels": 2, "heads": ["sequence"]}
    a = save("a", shape="encoder", **labels)
    done = trifold("eval", a, data, "--against", a)
    assert done.code == 2
    assert "predicts no next token" in " ".join(done.err.split())


def test_options_of_no_other_model_are_refused(trifold, save, data):
    done = trifold("eval", save("a", shape="decoder"), data, "--against-dtype", "bf16")
    assert done.code == 2
    assert "--against-dtype has no effect without --against" in " ".join(done.err.split())
