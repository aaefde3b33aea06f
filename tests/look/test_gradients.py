"""Gradients by layer are those of the loss."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models import TWO_LAYERS, add_noise
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.look.gradients import draw_gradients, layer_gradients
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

TEXT = "dogs love cats"


def pipeline_of(**keys) -> Pipeline:
    torch.manual_seed(3)
    words = train_tokenizer([TEXT] * 3, TokenizerSettings(kind="word", min_frequency=1))
    sizes = {**TWO_LAYERS, "vocab_size": words.vocab_size, "dropout": 0.0, **keys}
    return Pipeline(add_noise(Transformer(ModelConfig(**sizes)), 0.3), words)


def norm(tensors) -> float:
    return math.sqrt(sum(float(each.square().sum()) for each in tensors))


def test_parameters_have_the_gradients_of_the_loss():
    pipeline = pipeline_of(shape="decoder")
    trace = pipeline.trace(TEXT, gradients=True)
    found = layer_gradients(trace)
    ids = torch.tensor([trace.example.ids["decoder"]])
    F.cross_entropy(pipeline.logits(ids)[0, :-1], ids[0, 1:], reduction="sum").backward()
    assert [one.layer for one in found] == [0, 1, 2] and found[0].parameters == {}
    for one, block in zip(found[1:], pipeline.model.decoder.blocks, strict=True):
        expected = norm(each.grad for each in block.parameters())
        assert one.parameters["all"] == pytest.approx(expected, rel=1e-4)
        expected = norm(each.grad for each in block.self_attention.parameters())
        assert one.parameters["self_attention"] == pytest.approx(expected, rel=1e-4)
        state = trace.gradients[f"decoder.states.{one.layer - 1}"].norm(dim=-1)
        assert one.tokens == pytest.approx(state.tolist())
        assert one.states == pytest.approx(float(state.mean()))


def test_both_stacks_and_shared_blocks_have_a_row_for_each_layer():
    trace = pipeline_of(shape="encoder-decoder").trace(TEXT, TEXT, gradients=True)
    found = layer_gradients(trace)
    assert [(one.side, one.layer) for one in found] == [
        (side, layer) for side in ("encoder", "decoder") for layer in range(3)
    ]
    assert (
        "cross_attention" in found[-1].parameters and "cross_attention" not in found[2].parameters
    )
    assert draw_gradients(found).axes[0].get_yscale() == "log"
    shared = pipeline_of(shape="decoder", block_of_layer=(0, 0)).trace(TEXT, gradients=True)
    first, second = layer_gradients(shared)[1:]
    assert first.parameters == second.parameters and first.states != second.states


def test_a_trace_without_gradients_is_an_error():
    trace = pipeline_of(shape="decoder").trace(TEXT)
    with pytest.raises(UsageError, match="the trace has no gradients; use trace"):
        layer_gradients(trace)
