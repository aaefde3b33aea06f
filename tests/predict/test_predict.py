"""The tasks that a model supports, and its default task."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models import ONE_LAYER

from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.predict.predict import TASKS, choose_task, supported_tasks
from trifold.text import TokenizerSettings, train_tokenizer

SIZES = ONE_LAYER | {"d_ff": 16, "vocab_size": 40, "max_positions": 24}


def config(shape: str, *heads: str, **values: Any) -> ModelConfig:
    return ModelConfig.parse(SIZES | {"shape": shape, "heads": list(heads)} | values)


DEFAULT_TASKS: dict[str, tuple[ModelConfig, str]] = {
    "masks": (config("encoder", "lm"), "fill-mask"),
    "classes": (config("encoder", "pooler", "sequence", classifier_input="pooler"), "classify"),
    "classes of a decoder": (config("decoder", "sequence", classifier_input="last"), "classify"),
    "classes of an encoder-decoder": (
        config("encoder-decoder", "sequence", classifier_input="eos"),
        "classify",
    ),
    "tokens": (config("encoder", "token"), "tag"),
    "spans": (config("encoder", "span"), "answer"),
    "sentences": (config("encoder", "pooler", "next-sentence"), "next-sentence"),
    "a pooler": (config("encoder", "pooler"), "embed"),
    "no head": (config("encoder"), "embed"),
    "a bare decoder": (config("decoder"), "embed"),
}
AMBIGUOUS = {
    "both pretraining heads": (
        config("encoder", "lm", "pooler", "next-sentence"),
        "name one of fill-mask, next-sentence, embed",
    ),
    "a decoder": (config("decoder", "lm"), "this is a generation model; use `generate`"),
    "an encoder-decoder": (
        config("encoder-decoder", "lm"),
        "this is a generation model; use `generate`",
    ),
}


@pytest.mark.parametrize("case", DEFAULT_TASKS)
def test_the_heads_determine_the_default_task(case):
    model, task = DEFAULT_TASKS[case]
    assert choose_task(model, None) == choose_task(model, task) == task


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_an_ambiguous_task_is_an_error(case):
    model, message = AMBIGUOUS[case]
    with pytest.raises(UsageError, match=message):
        choose_task(model, None)


@pytest.mark.parametrize("task", TASKS)
def test_unsupported_tasks_are_errors(task):
    for model, _ in [*DEFAULT_TASKS.values(), *AMBIGUOUS.values()]:
        if task in supported_tasks(model):
            assert choose_task(model, task) == task
        else:
            with pytest.raises(
                UsageError, match=f"task {task}: requires a .*; it supports .*embed"
            ):
                choose_task(model, task)


def test_a_decoder_does_not_fill_masks():
    assert supported_tasks(config("decoder", "lm")) == ["embed", "search", "features"]
    assert "fill-mask" in supported_tasks(config("encoder-decoder", "lm"))


def test_options_are_those_of_the_tasks():
    assert TASKS["classify"].options == ("top_k", "threshold")
    assert TASKS["embed"].options == ("pooling", "normalise", "dense", "prompt")
    assert TASKS["tag"].options == ("merge", "ignore")
    assert TASKS["next-sentence"].options == ("threshold",)
    assert TASKS["answer"].options[:2] == ("top_k", "max_answer_length")


@pytest.fixture
def pipe() -> Pipeline:
    tokenizer = train_tokenizer(["the quick fox"], TokenizerSettings(kind="char", min_frequency=1))
    return Pipeline(
        Transformer(config("encoder", "pooler", "sequence", classifier_input="pooler")), tokenizer
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda pipe: pipe.predict("a", task="clasify"),
            "'clasify' is not known; did you mean 'classify'",
        ),
        (
            lambda pipe: pipe.predict("fox", topk=2),
            "topk: not an option of classify; did you mean 'top_k'",
        ),
        (
            lambda pipe: pipe.predict("fox", task="embed", merge="max"),
            "merge: not an option of embed",
        ),
        (lambda pipe: pipe.tag("fox"), "task tag: requires a token head"),
        (lambda pipe: pipe.answer("who", "fox"), "task answer: requires a span head"),
        (lambda pipe: pipe.classify(["a", "b"], ["c"]), "2 texts and 1 second texts"),
    ],
)
def test_invalid_arguments_are_errors(pipe, call, message):
    with pytest.raises(UsageError, match=message):
        call(pipe)


def test_one_text_gives_one_prediction_and_a_pair_is_one_for_all(pipe):
    one = pipe.classify("the", "fox")
    assert pipe.classify(["the"], "fox") == pipe.classify(("the",), ["fox"]) == [one]
    assert pipe.predict(["the", "quick"], "fox", top_k=1) == pipe.classify(
        ["the", "quick"], ["fox"] * 2, top_k=1
    )
    assert pipe.predict([]) == []


@pytest.mark.parametrize("parses", [False, True])
def test_each_task_parses_special_tokens_by_its_own_default(parses, monkeypatch):
    text = TokenizerSettings(kind="char", min_frequency=1, special=("cls", "sep", "mask"))
    tokenizer = train_tokenizer(["a dog"], text)
    tokenizer.settings["split_special_tokens"] = not parses
    read = []
    for name in ("encode", "encode_ids"):
        monkeypatch.setattr(
            f"trifold.predict.predict.ModelReader.{name}",
            lambda self, *_: read.append(self.parses_special) or 1 / 0,
        )
    defaults = {"fill-mask": True, "embed": parses, "classify": False, "tag": False}
    heads = {"fill-mask": "lm", "embed": "lm", "classify": "sequence", "tag": "token"}
    for task, default in defaults.items():
        pipe = Pipeline(Transformer(config("encoder", heads[task])), tokenizer)
        for options in ({}, {"parse_special": True}, {"parse_special": False}):
            with pytest.raises(ZeroDivisionError):
                pipe.predict("a [MASK]", task=task, **options)
            assert read.pop() == options.get("parse_special", default)


def test_questions_may_have_special_tokens():
    text = TokenizerSettings(kind="char", min_frequency=1, special=("cls", "sep", "mask"))
    tokenizer = train_tokenizer(["a dog"], text)
    values = {"vocab_size": tokenizer.vocab_size}
    pipe = Pipeline(Transformer(config("encoder", "span", **values)), tokenizer)
    for parse_special in (True, False):
        found = pipe.answer(
            "a<mask>", "a dog<mask>", top_k=40, max_answer_length=20, parse_special=parse_special
        )
        assert any(each.text == "<mask>" for each in found)
        starts = {each.start for each in found}
        assert (6 in starts) != parse_special  # inside the name
