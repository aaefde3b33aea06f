"""Laws of the comparison of two models: a model is at no distance from itself, the distance is
that of torch, and batches do not matter.
"""

from __future__ import annotations

import pytest
import torch
from tests.models import add_noise
from tests.objectives.common import random_model
from torch.nn import functional as F

from trifold.batches import BatchSettings
from trifold.nn import Inputs, ModelConfig
from trifold.objectives import divergence
from trifold.objectives.causal import Causal, CausalSettings
from trifold.objectives.divergence import measure_divergence
from trifold.objectives.translate import SourceTargetExamples, Translate, TranslateSettings
from trifold.ragged import Ragged
from trifold.text import TokenizerSettings, train_tokenizer

TEXTS = ["to be, or not to be", "a", "that is the question: whether", "it is"]
WIDTH = 12


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, TokenizerSettings(kind="char", vocab_size=60, min_frequency=1))


def two_models(tokenizer, **values):
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, max_positions=WIDTH, positions="learned", d_model=16,
        n_layers=2, n_heads=2, d_ff=24, dropout=0.0, **values,
    )  # fmt: skip
    model = random_model(config).eval()
    other = random_model(config).eval()
    torch.manual_seed(8)
    return model, add_noise(other, 0.3)


@pytest.fixture(scope="module")
def causal(tokenizer):
    """A task, examples, and two models."""
    task = Causal(CausalSettings(), tokenizer, WIDTH)
    examples = task.examples(task.encode(TEXTS))
    return task, examples, *two_models(tokenizer, shape="decoder")


def measure(task, examples, model, other, tokens=1000):
    batches = BatchSettings(tokens=tokens)
    return measure_divergence(task, model, other, examples, batches, lambda _count: None).values()


def test_a_model_equals_itself(causal):
    task, examples, model, _ = causal
    values = measure(task, examples, model, model)
    assert values["tokens"] == sum(len(text) + 1 for text in TEXTS)
    assert values["kl"] == values["kl_p99"] == values["kl_high"] == 0
    assert values["equal_top"] == 100
    assert values["perplexity"] == values["perplexity_against"]


def test_divergence_is_that_of_torch_on_single_rows(causal):
    task, examples, model, other = causal
    total, equal, count, losses = 0.0, 0, 0, [0.0, 0.0]
    for row in range(len(examples)):
        chunk = examples.select([row])
        start, size = int(chunk.starts[0]), int(chunk.sizes[0])
        ids = torch.from_numpy(examples.ids[start : start + size + 1].astype("int64"))
        with torch.no_grad():
            ours, theirs = (
                each.lm_head(each(Inputs(ids[None, :-1]))[0]).double().log_softmax(-1)
                for each in (model, other)
            )
        total += float(F.kl_div(ours, theirs, reduction="sum", log_target=True))
        equal += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        count += size
        for number, each in enumerate((ours, theirs)):
            losses[number] += float(F.nll_loss(each, ids[1:], reduction="sum"))
    values = measure(task, examples, model, other)
    assert values["kl"] > 0.05
    assert values["kl"] == pytest.approx(total / count, rel=1e-4)
    assert values["equal_top"] == pytest.approx(100 * equal / count)
    perplexities = [values["perplexity"], values["perplexity_against"]]
    expected = [float(torch.tensor(loss / count).exp()) for loss in losses]
    assert perplexities == pytest.approx(expected, rel=1e-4)


def test_batches_and_chunks_do_not_matter(causal, monkeypatch):
    task, examples, model, other = causal
    one = measure(task, examples, model, other, tokens=WIDTH)
    monkeypatch.setattr(divergence, "CHUNK", 3 * model.config.vocab_size)
    assert measure(task, examples, model, other) == pytest.approx(one, rel=1e-4)


def test_the_divergence_is_from_the_reference(causal):
    task, examples, model, other = causal
    forward = measure(task, examples, model, other)
    backward = measure(task, examples, other, model)
    assert forward["kl"] != pytest.approx(backward["kl"], rel=1e-3)
    assert forward["perplexity"] == pytest.approx(backward["perplexity_against"])


def test_targets_of_translations_are_compared(tokenizer):
    model, other = two_models(tokenizer, shape="encoder-decoder")
    task = Translate(TranslateSettings(), tokenizer, tokenizer)
    rows = Ragged.of([ids[:8] for ids in tokenizer.encode(TEXTS)])
    examples = SourceTargetExamples(rows, rows)
    assert measure(task, examples, model, model)["kl"] == 0
    values = measure(task, examples, model, other)
    assert values["tokens"] == len(rows.ids)
    assert values["kl"] > 0.01
    assert measure(task, examples, model, other, tokens=8) == pytest.approx(values, rel=1e-4)
