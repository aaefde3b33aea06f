"""Permutation language model: attention of the query stream, batches, and the loss of transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.models import TWO_LAYERS
from tests.objectives.common import eval_context, random_model
from torch.nn import functional as F

from trifold.hub import save_model
from trifold.nn import Inputs, ModelConfig
from trifold.nn.variants.two_streams import query_states
from trifold.objectives.permutation import Permutation, PermutationSettings
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.annotation import annotate

TEXTS = [
    "to be, or not to be",
    "a",
    "that is the question: whether it is nobler",
    "in the mind to suffer",
]
WIDTH = 16


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(
        kind="char", vocab_size=60, min_frequency=1, special=("cls", "sep", "mask")
    )
    return train_tokenizer(TEXTS, settings)


def config_of(tokenizer, **values):
    small = TWO_LAYERS | {
        "n_heads": 2, "shape": "encoder", "vocab_size": tokenizer.vocab_size,
        "max_positions": WIDTH, "positions": "relative-sinusoidal", "segment_offsets": True, "query_stream": True,
        "scale_embeddings": False, "heads": ["lm"], "lm_head_bias": True, "norm_epsilon": 1e-12,
        "activation": "gelu", "dropout": 0.0, "pad_id": tokenizer.pad_id,
        "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id,
    }  # fmt: skip
    return ModelConfig.parse(small | values)


@pytest.fixture(scope="module")
def model(tokenizer):
    return random_model(config_of(tokenizer))


@pytest.fixture(scope="module")
def rows(tokenizer):
    return annotate(tokenizer, TEXTS)


def make_objective(tokenizer, **values):
    return Permutation(PermutationSettings(**values), tokenizer, WIDTH)


def test_labels_are_the_tokens_at_the_target_positions(tokenizer, rows):
    objective = make_objective(tokenizer, share=3)
    examples = objective.examples(rows)
    batch = objective.batch(examples, np.arange(len(examples.chunks.sizes)), draw=5)
    positions, labels, ranks = batch.positions, batch.labels, batch.inputs.order
    real = labels >= 0
    assert int(real.sum()) == batch.tokens == objective.counts(batch)["tokens"]
    assert torch.equal(batch.inputs.tokens.gather(1, positions)[real], labels[real])
    assert torch.equal(
        ranks.gather(1, positions)[real] > 0, torch.ones(batch.tokens, dtype=torch.bool)
    )
    assert int((ranks > 0).sum()) == batch.tokens
    special = torch.from_numpy(objective.is_special)[batch.inputs.tokens]
    assert not (ranks[special] > 0).any()
    assert special[~batch.inputs.attend].all()
    assert bool((batch.inputs.tokens == tokenizer.cls_id).any(1).all())


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_query_attends_to_earlier_tokens_of_the_order_only(tokenizer, rows, model, draw):
    """Checked by the gradient of each query with respect to the embedding of each position."""
    objective = make_objective(tokenizer, share=3)
    examples = objective.examples(rows)
    batch = objective.batch(examples, np.array([2]), draw=draw)
    ranks, length = batch.inputs.order[0], batch.inputs.tokens.shape[1]
    own = Inputs(
        torch.arange(3, 3 + length)[None], order=batch.inputs.order
    )  # every token only once
    table = model.encoder_embeddings.tokens.weight
    answers = query_states(model, own, batch.positions)[0]
    for place, answer in zip(batch.positions[0].tolist(), answers, strict=True):
        weights = torch.randn_like(answer)
        (gradient,) = torch.autograd.grad((answer * weights).sum(), [table], retain_graph=True)
        reached = gradient[3 : 3 + length].abs().sum(-1) > 0
        assert reached.tolist() == (ranks < ranks[place]).tolist()


def test_the_left_to_right_order_is_causal(model):
    """Query i attends to the tokens before i, as in a causal model."""
    tokens, ranks = torch.arange(3, 11)[None], torch.arange(1, 9)[None]
    table = model.encoder_embeddings.tokens.weight
    answers = query_states(model, Inputs(tokens, order=ranks), torch.arange(8)[None])[0]
    contents = model(Inputs(tokens, order=ranks))[0]
    for place in range(8):
        for states, last in ((answers, place), (contents, place + 1)):
            weights = torch.randn_like(states[place])
            (gradient,) = torch.autograd.grad(
                (states[place] * weights).sum(), [table], retain_graph=True, allow_unused=True
            )
            reached = gradient[3:11].abs().sum(-1) > 0
            assert reached.tolist() == [at < last for at in range(8)]


def test_the_loss_equals_that_of_transformers(tokenizer, rows, model, tmp_path):
    transformers = pytest.importorskip("transformers")
    save_model(tmp_path, model)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    objective = make_objective(tokenizer, share=3)
    examples = objective.examples(rows)
    batch = objective.batch(examples, np.arange(len(examples.chunks.sizes)), draw=2)
    ranks, real = batch.inputs.order, batch.inputs.attend
    hidden = torch.where(
        ranks[:, :, None] == 0, ranks[:, None, :] > 0, ranks[:, None, :] >= ranks[:, :, None]
    )
    logits = theirs(
        batch.inputs.tokens,
        attention_mask=real.long(),
        perm_mask=hidden.float(),
        target_mapping=F.one_hot(batch.positions, real.shape[1]).float(),
    ).logits
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-1, reduction="sum"
    )
    term = objective.loss(model, batch)["tokens"]
    assert term.count == batch.tokens
    torch.testing.assert_close(term.sum, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(term.nll, expected, rtol=1e-4, atol=1e-4)


def test_a_validation_shows_samples(tokenizer, rows, model):
    objective = make_objective(tokenizer, share=3)
    examples = objective.examples(rows)
    one, again = (objective.evaluate(model, rows, examples, eval_context()) for _ in range(2))
    assert one == again
    assert one.scores["perplexity"] == pytest.approx(math.exp(one.loss))
    assert one.value == -one.loss
    assert [sample.reference for sample in one.samples] == [TEXTS[0][:14], TEXTS[0][14:]]
    assert all(
        "<mask>" in sample.source for sample in one.samples if sample.source != sample.reference
    )


def test_a_missing_query_stream_or_head_is_an_error(tokenizer):
    config = config_of(tokenizer, query_stream=False)
    assert "model.query_stream=true" in PermutationSettings().model_problem(config)
    config = config_of(tokenizer, heads=[], lm_head_bias=False)
    assert "model.heads=[lm]" in PermutationSettings().model_problem(config)
