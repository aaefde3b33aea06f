"""Predictions of an input do not depend on the other inputs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.cli.readers import BERT, HEADS, model_of
from tests.models import ONE_LAYER, TWO_LAYERS
from tests.text import folders

from trifold.errors import CheckpointError, DataError, TrifoldError, UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline, load
from trifold.predict import model_reader
from trifold.predict.predict import TASKS
from trifold.text import (
    Tokenizer,
    TokenizerSettings,
    Truncation,
    read_tokenizer,
    train_tokenizer,
)

LINE = st.lists(st.sampled_from(folders.WORDS[:40]), min_size=1, max_size=4).map(" ".join)
LINES = st.lists(LINE, min_size=1, max_size=5)


@cache
def tokenizer(place: Any) -> Tokenizer:
    return read_tokenizer(folders.bert(place))


SIMPLE = [task for task in TASKS if task not in ("search", "choose")]  # these read further texts


@pytest.fixture(scope="module")
def pipes(tmp_path_factory) -> dict[str, Pipeline]:
    words = tokenizer(tmp_path_factory.getbasetemp() / "bert")
    return {task: Pipeline(model_of(task, words.vocab_size), words) for task in HEADS}


@pytest.mark.slow
@pytest.mark.parametrize("task", SIMPLE)
@settings(max_examples=15)
@given(texts=LINES, tokens=st.sampled_from([1, 30, 4096]))
def test_results_do_not_depend_on_the_batch(pipes, task, texts, tokens):
    pipe = pipes[task]
    texts = [f"{text} [MASK]" for text in texts] if task == "fill-mask" else texts
    pairs = [text[::-1] or "x" for text in texts] if TASKS[task].pairs == "must" else None
    finished: list[int] = []
    together = pipe.predict(texts, pairs, task=task, batch_tokens=tokens, on_done=finished.append)
    assert sum(finished) == len(texts)
    for number, text in enumerate(texts):
        alone = pipe.predict(text, None if pairs is None else pairs[number], task=task)
        assert _near(together[number], alone)


def _near(one: Any, other: Any) -> bool:
    """Equal text, and numbers that are approximately equal."""
    if isinstance(one, torch.Tensor):
        return torch.allclose(one, other, rtol=0, atol=1e-5)
    if isinstance(one, float):
        return abs(one - other) <= 1e-5
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_near, one, other))
    return bool(one == other)


def test_batches_that_are_read_at_once_give_the_same_results_in_order(pipes, monkeypatch):
    texts = [" ".join(folders.WORDS[n : n + 1 + n % 4]) for n in range(20)]
    alone = [pipes["classify"].classify(text) for text in texts]
    batches: list[int] = []
    monkeypatch.setattr(model_reader, "workers_on", lambda device: 3)
    together = pipes["classify"].classify(texts, batch_tokens=60, on_done=batches.append)
    assert len(batches) > 3 and sum(batches) == len(texts)
    assert _near(together, alone)


def test_predictions_do_not_change_the_model(pipes):
    pipe = pipes["classify"]
    pipe.model.train()
    in_training = pipe.classify("the quick fox")
    assert pipe.model.training
    pipe.model.eval()
    assert in_training == pipe.classify("the quick fox")  # no dropout
    assert all(parameter.grad is None for parameter in pipe.model.parameters())


def test_a_long_text_is_an_error_or_truncated(pipes):
    pipe, long = pipes["classify"], " ".join(folders.WORDS * 2)
    with pytest.raises(
        DataError, match=r"text 2 of 2: .* reads at most 48; shorten the text, or truncate it"
    ):
        pipe.classify(["fox", long])
    messages: list[Truncation] = []
    truncated = pipe.classify(["fox", long], on_overflow="truncate", on_cut=messages.append)
    assert len(messages) == 1 and str(messages[0]).startswith("1 text cut to fit")
    assert _near(truncated[0], pipe.classify("fox"))
    with pytest.raises(UsageError, match="on_overflow: 'window' is neither error nor truncate"):
        pipe.classify("fox", on_overflow="window")


def test_segments_follow_the_settings_of_the_tokenizer(pipes, tmp_path):
    pipe = pipes["classify"]
    expected = pipe.classify("the fox", "a wolf")
    pipe.save(tmp_path)
    assert load(tmp_path).classify("the fox", "a wolf") == expected
    words = Tokenizer(pipe.tokenizer.library, names=pipe.tokenizer.names, complete=False)
    assert pipe.tokenizer.has_token_types and not words.has_token_types
    assert not _near(Pipeline(pipe.model, words).classify("the fox", "a wolf"), expected)


def test_the_tokenizer_of_another_model_is_an_error(pipes):
    small = Transformer(ModelConfig.parse(BERT | HEADS["classify"] | {"vocab_size": 20}))
    with pytest.raises(CheckpointError, match="they do not belong together"):
        Pipeline(small, pipes["classify"].tokenizer).classify("the quick brown fox")


def test_a_missing_tokenizer_is_an_error(pipes):
    with pytest.raises(
        UsageError, match="no tokenizer; load the model with tokenizer=FOLDER, or use logits"
    ):
        Pipeline(pipes["classify"].model).classify("fox")


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_embeddings_of_other_shapes_pool_the_last_states(shape, pooling, pipes):
    words = pipes["embed"].tokenizer
    sizes = TWO_LAYERS | {"max_positions": 40}
    config = ModelConfig.parse({"shape": shape, "vocab_size": words.vocab_size} | sizes)
    pipe = Pipeline(Transformer(config).eval(), words)
    texts = ["the quick brown fox", "wolf"]
    together = pipe.embed(texts, pooling=pooling)
    assert all(
        _near(one, pipe.embed(text, pooling=pooling))
        for one, text in zip(together, texts, strict=True)
    )
    ids = words.rows(texts[:1])[0].ids
    row = torch.tensor([[*ids, pipe.config.eos_id] if shape == "encoder-decoder" else ids])
    states = pipe.hidden_states(row, decoder_tokens=row if shape == "encoder-decoder" else None)
    last = states["encoder" if shape == "encoder-decoder" else "decoder"][-1][0]
    torch.testing.assert_close(
        together[0], last.mean(0) if pooling == "mean" else last[-1], rtol=0, atol=1e-5
    )


def test_an_encoder_decoder_appends_one_end_token(pipes, tmp_path):
    words = train_tokenizer(["the quick fox"], TokenizerSettings(kind="char", min_frequency=1))
    sizes = ONE_LAYER | {"d_ff": 16, "max_positions": 12}
    heads = {"heads": ["sequence"], "classifier_input": "eos", "vocab_size": words.vocab_size}
    pipe = Pipeline(Transformer(ModelConfig.parse(sizes | heads)).eval(), words)
    expected = pipe.classify(["the fox", "x", "quick " * 9], on_overflow="truncate")
    pipe.save(tmp_path)
    loaded = load(tmp_path)
    assert loaded.tokenizer.rows(["x"])[0].ids[-1] == pipe.config.eos_id
    assert _near(expected, loaded.classify(["the fox", "x", "quick " * 9], on_overflow="truncate"))


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
@pytest.mark.parametrize("task", SIMPLE)
def test_damaged_weights_are_an_error_in_every_task(pipes, task, damage):
    model = model_of(task, pipes[task].config.vocab_size)
    with torch.no_grad():
        model.encoder_embeddings.tokens.weight.fill_(damage)
    pipe, pair = (
        Pipeline(model, pipes[task].tokenizer),
        "fox" if TASKS[task].pairs == "must" else None,
    )
    with pytest.raises(TrifoldError, match="NaN or infinity: its weights are damaged"):
        pipe.predict("the [MASK]", pair, task=task)


def test_an_infinite_regression_is_an_error(pipes):
    labels = {"n_labels": 1, "label_names": ["price"], "problem_type": "regression"}
    model = model_of("classify", pipes["classify"].config.vocab_size, **labels)
    with torch.no_grad():
        model.heads["sequence"].out_proj.bias.fill_(float("inf"))
    with pytest.raises(TrifoldError, match="NaN or infinity"):
        Pipeline(model, pipes["classify"].tokenizer).classify("the fox")
