"""Scores of a decoder whose prompt has examples: what it reads, what is scored, and the errors."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.recipes import GPT2, WORDS

import trifold as library
from trifold.cli import eval as evaluation
from trifold.cli.eval import EvalRequest
from trifold.cli.shots import fill_prompts, parse_prompt
from trifold.errors import UsageError

NUMBERS = ["one", "two", "three", "four", "five"]
PAIRS = [(one, other) for one in NUMBERS for other in NUMBERS]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A language model of lines of pairs, and tables of pairs."""
    here = tmp_path_factory.mktemp("shots")
    lines = [f"{source} => {target}" for source, target in PAIRS]
    (here / "text.txt").write_text("\n".join(lines * 3) + "\n", encoding="utf-8")
    for name, pairs in (("test", PAIRS[:6]), ("more", PAIRS[10:14]), ("long", PAIRS)):
        table = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (here / f"{name}.tsv").write_text(f"source\ttarget\n{table}", encoding="utf-8")
    values = {
        "task": {"kind": "causal"}, "tokenizer": WORDS | {"min_frequency": 1}, "model": GPT2 | {"max_positions": 48},
        "batch": {"tokens": 200}, "data": {"train": str(here / "text.txt"), "holdout": 0.2},
        "train": {"steps": 4, "warmup": 1, "validate_every": 4, "save_every": 4, "device": "cpu", "samples": 1},
    }  # fmt: skip
    (here / "gpt.yaml").write_text(json.dumps(values), encoding="utf-8")
    library.train(here / "gpt.yaml", out=here / "gpt")
    return here


def test_examples_stand_before_each_source():
    examples = SimpleNamespace(sources=["a", "{b}"], targets=["A", "B"])
    found = fill_prompts(parse_prompt("{source} =>"), ["c", "d"], examples)
    assert found == ["a => A\n{b} => B\nc =>", "a => A\n{b} => B\nd =>"]
    lines = fill_prompts(parse_prompt(r"{source}\nIn short:"), ["c"], examples)
    assert lines == ["a\nIn short: A\n\n{b}\nIn short: B\n\nc\nIn short:"]
    assert fill_prompts(parse_prompt("{text} ="), ["c"], None) == ["c ="]


def test_an_output_ends_with_its_line_and_only_a_decoder_has_one(monkeypatch):
    seen = {}

    def generate(pipeline, sources, options, *_):
        seen.update(options, sources=sources)
        return [(source, []) for source in sources]

    def request(shape):
        pipeline = SimpleNamespace(config=SimpleNamespace(shape=shape))
        return EvalRequest("m", None, [], None, None, {"prompt": "{source} =>"}, lambda: pipeline)

    monkeypatch.setattr(evaluation, "generate_batches", generate)
    assert evaluation.translate(request("decoder"), SimpleNamespace(sources=["a"]))[0] == [""]
    assert seen == {"sources": ["a =>"], "prompt": "{text}", "stop_strings": ["\n"]}
    with pytest.raises(UsageError, match="only a decoder continues one"):
        evaluation.translate(request("encoder"), SimpleNamespace(sources=["a"]))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "gpt/model"])
def test_eval_scores_what_the_model_writes_after_the_examples(trifold, here, tmp_path, model):
    out = tmp_path / "out.txt"
    options = ["--prompt", "{source} =>", "--examples", str(here / "more.tsv"), "--shots", "2"]
    done = trifold(
        "eval", str(here / model), str(here / "test.tsv"), *options, "--out", str(out), "--json"
    )
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["sentences"] == 6 and "exact_match" in {key.lower() for key in report["scores"]}
    before = "".join(f"{source} => {target}\n" for source, target in PAIRS[10:12])
    pipeline = library.load(here / "gpt")
    expected = [
        pipeline.generate(f"{before}{source} =>", prompt="{text}", stop_strings=["\n"])
        for source, _ in PAIRS[:6]
    ]
    assert any(expected)
    assert out.read_text("utf-8").splitlines() == [" ".join(text.split()) for text in expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--examples", "more.tsv"], "--examples has no effect without --prompt; add it"),
        (["--prompt", "{source} =>", "--shots", "2"], "--shots has no effect without --examples"),
        (["--prompt", "no name"], "--prompt: 'no name' names no text in braces"),
        (["--prompt", "{a} {b} =", "--examples", "more.tsv"], "--prompt: "),
        (["--prompt", "{source} =>", "--examples", "more.tsv", "--shots", "9"], "--shots 9: "),
        (["--prompt", "{source} =>", "--examples", "long.tsv"], "give fewer examples (--shots)"),
    ],
)
def test_options_that_do_not_fit_are_errors(trifold, here, monkeypatch, options, message):
    monkeypatch.chdir(here)
    done = trifold("eval", "gpt", "test.tsv", *options)
    assert done.code in (1, 2) and message in " ".join(done.err.split())
