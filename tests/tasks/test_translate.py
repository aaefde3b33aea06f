from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from trifold.data import Pairs
from trifold.errors import DataError, SettingsError
from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.tasks import Translate, TranslateSettings
from trifold.text import TokenizerSettings, train_tokenizer

PAIRS = Pairs(
    sources=["ab", "c", "abcdef", "b", "fedcba", "aa"],
    targets=["x", "yz", "xyzxyz", "", "zyx", "zzzz"],
    lines=[1, 2, 3, 4, 5, 6],
)
EVERY = np.arange(6)


@pytest.fixture(scope="module")
def tokenizers():
    settings = TokenizerSettings(kind="char", vocab_size=20, min_frequency=1)
    return train_tokenizer(PAIRS.sources, settings), train_tokenizer(PAIRS.targets, settings)


@pytest.fixture
def task(tokenizers):
    return Translate(TranslateSettings(), *tokenizers)


@pytest.fixture
def examples(task):
    return task.examples(PAIRS)


@pytest.fixture
def model(tokenizers):
    """Every parameter random, so that no zero hides a mistake."""
    source, target = tokenizers
    config = ModelConfig(
        vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, max_positions=32,
        d_model=16, n_layers=2, n_heads=2, d_ff=24, dropout=0.0, lm_head_bias=True,
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# --- examples and batches ------------------------------------------------------------------------------------


def test_both_sides_end_with_the_end_token(task, examples):
    assert examples.lengths.tolist() == [[3, 2], [2, 3], [7, 7], [2, 1], [7, 4], [3, 5]]
    last = examples.targets.ids[examples.targets.starts[1:] - 1]
    assert (last == task.target.eos_id).all()
    assert task.target.decode([examples.targets.ids[: examples.targets.starts[1]].tolist()]) == ["x"]


def test_the_decoder_reads_what_it_should_have_written_one_later(task, examples):
    batch = task.batch(examples, EVERY)
    target = examples.targets.padded(EVERY, 7, task.target.pad_id)
    read = batch.target.tokens
    assert read.shape == (6, 7)
    assert (read[:, 0] == task.start_id).all()
    assert torch.equal(read[:, 1:], target[:, :-1])
    assert batch.source.tokens.shape == (6, 7)


def test_real_places_are_those_of_the_target_and_nothing_else(task, examples):
    batch = task.batch(examples, EVERY)
    lengths = examples.lengths[:, 1]
    places = [row * 7 + column for row in range(6) for column in range(lengths[row])]
    assert batch.real.tolist() == places
    assert batch.wanted.tolist() == examples.targets.ids.tolist()
    assert batch.tokens == lengths.sum() == len(places)
    assert task.counts(batch) == {"tokens": batch.tokens}


def test_the_mask_shows_the_real_tokens_of_the_source(task, examples):
    batch = task.batch(examples, EVERY)
    assert batch.source.attend.sum(1).tolist() == examples.lengths[:, 0].tolist()
    assert torch.equal(batch.source.attend, batch.source.tokens != task.source.pad_id)
    assert batch.target.attend is None


def test_where_nothing_is_padded_nothing_is_masked(task, examples):
    batch = task.batch(examples, np.array([2, 2]))
    assert batch.real is None
    assert batch.source.attend is None
    assert (
        batch.wanted.tolist()
        == examples.targets.ids[examples.targets.starts[2] : examples.targets.starts[3]].tolist() * 2
    )


def test_rows_are_cut_only_where_that_is_asked_for(task, examples):
    batch = task.batch(examples, EVERY, width=3)
    assert batch.source.tokens.shape == batch.target.tokens.shape == (6, 3)
    assert batch.tokens == np.minimum(examples.lengths[:, 1], 3).sum() == len(batch.wanted)


# --- loss ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_of_whole_logits_with_padding_ignored(
    tokenizers, examples, model, smoothing
):
    task = Translate(TranslateSettings(label_smoothing=smoothing), *tokenizers)
    batch = task.batch(examples, EVERY)
    term = task.loss(model, batch)["tokens"]
    logits = model.lm_head(model(batch.source, batch.target)).flatten(0, 1)
    wanted = examples.targets.padded(EVERY, 7, -100).flatten()
    for ours, eps in ((term.sum, smoothing), (term.nll, 0.0)):
        by_hand = F.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum", label_smoothing=eps)
        assert torch.allclose(ours, by_hand, rtol=1e-5)
    assert term.count == batch.tokens


def test_the_gradient_is_that_of_whole_logits_too(task, examples, model):
    batch = task.batch(examples, EVERY)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(task.loss(model, batch)["tokens"].sum, parameters)
    logits = model.lm_head(model(batch.source, batch.target)).flatten(0, 1)
    wanted = examples.targets.padded(EVERY, 7, -100).flatten()
    by_hand = torch.autograd.grad(
        F.cross_entropy(logits, wanted, ignore_index=-100, reduction="sum", label_smoothing=0.1), parameters
    )
    for a, b in zip(ours, by_hand, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_row_costs_the_same_whoever_stands_beside_it(task, examples, model):
    with torch.no_grad():
        together = task.loss(model, task.batch(examples, EVERY))["tokens"].sum
        alone = [task.loss(model, task.batch(examples, np.array([row])))["tokens"].sum for row in EVERY]
        halves = [
            task.loss(model, task.batch(examples, rows))["tokens"].sum for rows in (EVERY[:2], EVERY[2:])
        ]
    assert torch.allclose(together, sum(alone), rtol=1e-5)
    assert torch.allclose(together, sum(halves), rtol=1e-5)


# --- prediction ----------------------------------------------------------------------------------------------

TEXTS = ["ab", "f", "abcdefabc", "fedcba", "b", "aa", "cdef"]


def test_a_prediction_depends_neither_on_order_nor_on_batches(task, model):
    config = GenerationConfig(num_beams=2, num_return_sequences=2, max_new_tokens=9)
    found = task.predict(model, TEXTS, config)
    again = task.predict(model, TEXTS[::-1], config)[::-1]
    alone = [task.predict(model, [text], config)[0] for text in TEXTS]
    small = task.predict(model, TEXTS, config, batch_tokens=12)
    for other in (again, alone, small):
        assert [[h.tokens for h in each] for each in other] == [[h.tokens for h in each] for each in found]
        for one, two in zip(other, found, strict=True):
            assert [h.score for h in one] == pytest.approx([h.score for h in two], abs=1e-4)
    assert len({tuple(each[0].tokens) for each in found}) > 1


def test_every_text_is_heard_of_once(task, model):
    heard = []
    task.predict(model, TEXTS, GenerationConfig(max_new_tokens=2), batch_tokens=12, on_done=heard.append)
    assert sum(heard) == len(TEXTS) and len(heard) > 1


def test_translate_is_the_best_hypothesis_as_text(task, model):
    config = GenerationConfig(max_new_tokens=5)
    best = [found[0].tokens for found in task.predict(model, TEXTS, config)]
    assert task.translate(model, TEXTS, config) == task.target.decode(best)


@pytest.mark.parametrize(("texts", "which"), [([""], "text 1 of 1"), (["a", "b", ""], "text 3 of 3")])
def test_a_text_without_tokens_is_refused_by_its_number(task, model, texts, which):
    with pytest.raises(DataError, match=rf"{which} has no tokens"):
        task.predict(model, texts, GenerationConfig())


def test_no_text_gives_no_answer(task, model):
    assert task.predict(model, [], GenerationConfig()) == []


# --- scores and settings -------------------------------------------------------------------------------------


def test_scores_are_computed_as_the_settings_say(tokenizers):
    plain = Translate(TranslateSettings(), *tokenizers).scores(["A b."], ["a b ."])
    lower = Translate(TranslateSettings(tokenize="none", lowercase=True), *tokenizers).scores(
        ["A b ."], ["a b ."]
    )
    assert set(plain) == {"bleu", "chrf", "exact_match"}
    assert "tok:13a" in plain["bleu"].signature and "case:mixed" in plain["bleu"].signature
    assert "tok:none" in lower["bleu"].signature and "case:lc" in lower["bleu"].signature
    assert lower["exact_match"].value == 100 and plain["exact_match"].value == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"best_by": "blue"}, r"task\.best_by: no score 'blue'; did you mean 'bleu'\?"),
        ({"tokenize": "31a"}, r"task\.tokenize: sacreBLEU has no tokenizer '31a'; did you mean '13a'\?"),
        ({"label_smoothing": 1.0}, r"task\.label_smoothing: .*less than 1"),
    ],
)
def test_what_the_first_validation_would_trip_over_is_refused_before(values, message):
    with pytest.raises(SettingsError, match=message):
        TranslateSettings.parse(values, at="task")
