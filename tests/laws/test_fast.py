"""The fast operations compute what the plain ones do: states, gradients, cached decoding; in fp32,
bf16 and int8."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from tests.laws.configs import cases, config_of, parts_of
from tests.laws.models import (
    Example,
    assert_close,
    bf16_values_of,
    decode_parts,
    dequantized_of,
    gradient_difference,
    gradients_of,
    hidden_of,
    int8_model_of,
    loss_of,
    memory_of,
    model_of,
    new_model,
    packed,
    padded,
    real_states,
    relative_error,
    rows_of,
    texts_of,
)
from tests.laws.operations import plain
from torch import Tensor

from trifold.fast import bfloat16_linear
from trifold.fast.attention import attend, supports_prompt_attention
from trifold.fast.one_state import head_output, output_of_one_state, reads_one_state
from trifold.nn import Inputs, Mask, ModelConfig, Transformer, ops
from trifold.nn.hooks import capture, record_calls
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.parts import WalkPart
from trifold.train.blocks import compile_blocks, recompute_blocks

pytestmark = pytest.mark.parametrize("operations", ["fast"], indirect=True)
DECODERS = ("encoder-decoder", "decoder")


def losses(model: Transformer, example: Example) -> list[Tensor]:
    """The real states; a loss of them with gradients; the gradients by parameter."""
    hidden = real_states(hidden_of(model, example), example)
    before = hidden.detach().clone()  # see test_cross_entropy_does_not_change_the_states
    total = loss_of(hidden)
    if model.lm_head is not None:
        labels = torch.arange(len(hidden)) % 13 - 1
        features = model.lm_head.features(hidden)
        sums = linear_cross_entropy(features, model.lm_head.weight, model.lm_head.bias, labels, 0.1)
        total = total + sums.loss
    return [before, *gradients_of(total, model)]


def example_of(name: str) -> Example:
    """Packed rows, which are the same as padded ones by a law of their own."""
    rows = rows_of(config_of(name))
    return padded(rows) if config_of(name).patch_size else packed(rows)


@cases("fast")
def test_states_and_gradients_in_fp32(name: str) -> None:
    model, example = model_of(name, torch.float32), example_of(name)
    got = losses(model, example)
    with plain():
        expected = losses(model, example)
    assert_close(got[0], expected[0], 1e-5)
    difference = gradient_difference(got[1:], expected[1:])
    if difference > 5e-5:  # of a gradient that rounding changes as much in the plain operations
        with plain():
            exact = losses(deepcopy(model).double(), example)
        rounding = gradient_difference(expected[1:], exact[1:])
        assert gradient_difference(got[1:], exact[1:]) <= 4 * rounding


@cases("fast bf16")
def test_states_and_gradients_in_bf16_have_the_rounding_errors_of_plain_ones(name: str) -> None:
    model, example = model_of(name, torch.bfloat16), example_of(name)
    got = losses(model, example)
    with plain():
        rounded, exact = losses(model, example), losses(bf16_values_of(name), example)
    for part in (slice(0, 1), slice(1, None)):
        errors = [relative_error(each[part], exact[part]) for each in (got, rounded)]
        assert errors[0] <= max(8e-2, 3 * errors[1]), errors


@torch.no_grad()
@cases("fast bf16", every=6)
def test_states_with_emulated_bf16_have_the_rounding_errors_of_plain_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a processor that has no instructions for products of bf16."""
    monkeypatch.setattr(bfloat16_linear, "emulates_bf16_products", lambda: True)
    model, example = model_of(name, torch.bfloat16), example_of(name)
    got = real_states(hidden_of(model, example), example)
    with plain():
        rounded = real_states(hidden_of(model, example), example)
        exact = real_states(hidden_of(bf16_values_of(name), example), example)
    errors = [relative_error([each], [exact]) for each in (got, rounded)]
    assert errors[0] <= max(8e-2, 3 * errors[1]), errors


def test_cross_entropy_does_not_change_the_states() -> None:
    hidden, weight = torch.randn(33, 16, requires_grad=True), torch.randn(31, 16)
    before = hidden.detach().clone()
    linear_cross_entropy(hidden, weight, None, torch.arange(33) % 13 - 1, 0.1)
    assert torch.equal(hidden, before)


def decoded(model: Transformer, kind: str, rows: int, beams: int = 1) -> Tensor:
    """The states of tokens that are decoded one by one after a prompt; the beams of a source are
    reordered on the way."""
    tokens = texts_of(model.config, rows * beams, 13)
    memory = memory_of(model, rows)
    cache = model.new_cache(kind, capacity=20)  # type: ignore[arg-type]
    prompt = tokens[::beams, :7]
    decode_parts(model, prompt, [7], memory, cache)
    cache.expand(beams)
    outs = [decode_parts(model, tokens, [8, 9, 10], memory, cache)]
    parents = torch.arange(rows * beams).view(rows, beams).flip(1).flatten()
    cache.reorder(parents if beams > 1 else parents.flip(0) if memory is None else parents)
    outs.append(decode_parts(model, tokens, [11, 12], memory, cache))
    return torch.cat(outs, 1)


# cache, rows, beams; a library multiplies the last
DECODED = (("growing", 1, 1), ("static", 3, 2), ("sliding", 3, 1), ("growing", 3, 3))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prompt_in_parts_has_the_bits_of_a_whole_one(dtype: torch.dtype) -> None:
    q = torch.randn(2, 4, 21, 32).to(dtype)
    k, v = torch.randn(2, 2, 2, 21, 32).to(dtype)
    whole = attend(q, k, v, Mask(causal=True))
    parts = [
        attend(q[:, :, first:last], k[:, :, :last], v[:, :, :last], Mask(causal=True, offset=first))
        for first, last in ((0, 9), (9, 11), (11, 21))
    ]
    if supports_prompt_attention(q, k, v, Mask(causal=True), None):
        assert torch.equal(torch.cat(parts, 2), whole)
    with plain():
        exact = ops.attend(q.double(), k.double(), v.double(), Mask(causal=True))
    for found in (whole, torch.cat(parts, 2)):
        assert relative_error([found], [exact]) <= {torch.float32: 1e-5}.get(dtype, 1e-2)


@torch.no_grad()
@cases("fast", shapes=DECODERS)
def test_cached_decoding_in_fp32(name: str) -> None:
    model = model_of(name, torch.float32)
    for case in DECODED:
        got = decoded(model, *case)
        with plain():
            expected = decoded(model, *case)
        assert_close(got, expected, 1e-5)


@pytest.mark.quick_cases(1)
@torch.no_grad()
@cases("fast bf16", shapes=DECODERS)
def test_cached_decoding_in_bf16_has_the_rounding_errors_of_the_plain_one(name: str) -> None:
    model = model_of(name, torch.bfloat16)
    for case in DECODED[1::2]:
        got = decoded(model, *case)
        with plain():
            rounded = decoded(model, *case)
            exact = decoded(bf16_values_of(name), *case)
        errors = [relative_error([each], [exact]) for each in (got, rounded)]
        assert errors[0] <= max(4e-2, 3 * errors[1]), (case, errors)


@cases("fast int8", every=2)
def test_int8_weights_are_their_dequantized_values(name: str) -> None:
    """States, a gradient that passes through them, and decoding. Its activations have 16 bits in
    steps, and on a processor with AVX2 only also those of sources and prompts."""
    model, reference = int8_model_of(name), dequantized_of(name)
    example = padded(rows_of(config_of(name)))
    title = next(title for title, p in model.named_parameters() if p.dim() == 1)
    found = []
    for each in (model, reference):
        hidden = real_states(hidden_of(each, example), example)
        (gradient,) = torch.autograd.grad(loss_of(hidden), [each.get_parameter(title)])
        found.append((hidden, gradient))
    for got, expected in zip(*found, strict=True):
        assert_close(got, expected, 1e-4)
    if model.decoder is not None:
        with torch.no_grad():
            got = decoded(model, "growing", 3, 2)
            with plain():
                expected = decoded(reference, "growing", 3, 2)
        assert_close(got, expected, 3e-4)


@cases("fast int8 training", every=8)
def test_gradients_pass_through_int8_weights_in_bf16(name: str) -> None:
    example, found = example_of(name), []
    for model in (int8_model_of(name, torch.bfloat16), dequantized_of(name)):
        vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        total = loss_of(real_states(hidden_of(model, example), example).float())
        # Of all vectors together: that of a single one may be what remains of terms that cancel.
        gradients = torch.autograd.grad(total, vectors, materialize_grads=True)
        found.append((torch.cat(gradients),))
    # Of tiny models, whose vectors have gradients of few elements; most errors are below 0.05.
    # A reversible walk first runs without a gradient, where the states are quantized, too.
    assert relative_error(*found) <= (0.3 if "reversible" in parts_of(name) else 0.2)


@pytest.mark.quick_cases(1)
@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2])
@cases("fast int8", shapes=["encoder"], every=3)
def test_int8_matmul_of_encoders_has_the_error_of_int8_weights(name: str, threads: int) -> None:
    """One thread and several have kernels of their own."""
    example = example_of(name)
    with plain():
        exact = real_states(hidden_of(dequantized_of(name), example), example).float()
        model = int8_model_of(name, torch.bfloat16)
        rounded = real_states(hidden_of(model, example), example).float()
    torch.set_num_threads(threads)
    try:
        got = real_states(hidden_of(model, example), example).float()
    finally:
        torch.set_num_threads(1)
    errors = [float((each - exact).norm() / exact.norm()) for each in (got, rounded)]
    assert errors[0] <= max(0.15, 2.5 * errors[1]), errors


@torch.no_grad()
@cases("fast int8", shapes=DECODERS)
def test_int8_matmul_of_many_rows_has_the_error_of_int8_weights(name: str) -> None:
    """In bf16 the activations of many rows are quantized too."""
    exact_model, model = dequantized_of(name), int8_model_of(name, torch.bfloat16)
    with plain():
        exact = decoded(exact_model, "growing", 4, 3).float()
        rounded = decoded(model, "growing", 4, 3).float()
    got = decoded(model, "growing", 4, 3).float()
    errors = [float((each - exact).norm() / exact.norm()) for each in (got, rounded)]
    assert errors[0] <= max(0.15, 2.5 * errors[1]), errors


@cache
def _trained(name: str, dtype: torch.dtype) -> Transformer:
    from trifold.fast.int8_training import enable_int8_training

    model = new_model(config_of(name)).to(dtype)
    enable_int8_training(model)
    return model


@pytest.mark.slow
@cases("fast int8 training", every=4)
def test_int8_training_has_gradients_of_about_the_plain_direction(name: str) -> None:
    dtype = torch.float32 if config_of(name).shape == "encoder" else torch.bfloat16
    example = example_of(name)
    got = torch.cat(
        [each.flatten().double() for each in losses(_trained(name, dtype), example)[1:]]
    )
    with plain():
        expected = losses(model_of(name, dtype), example)[1:]
    flat = torch.cat([each.flatten().double() for each in expected])
    assert torch.cosine_similarity(got, flat, dim=0) > 0.9


@pytest.mark.parametrize("state", ["pooler", "first", "last", "eos", "mean"])
@pytest.mark.parametrize("norms", ["pre", "post", "sandwich"])
def test_a_head_of_one_state_needs_no_other_state_of_the_last_block(state: str, norms: str) -> None:
    changes = {"classifier_input": state, "norm_placement": norms}
    config = config_of("encoder: BERT").model_copy(update=changes)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    model.reset_parameters()
    rows = rows_of(config)
    for example in (*rows, padded(rows), padded(rows, left=True), packed(rows)):
        inputs = example.source
        with torch.no_grad():
            expected = model.head_outputs(inputs, heads=["sequence"])["sequence"]
            assert reads_one_state(model, inputs, "sequence") == (state != "mean")
            assert_close(head_output(model, inputs, "sequence"), expected, 1e-5)
            if state != "mean":
                assert_close(output_of_one_state(model, inputs, "sequence"), expected, 1e-5)
            with capture(model, kind="state"):
                assert not reads_one_state(model, inputs, "sequence")


@pytest.mark.parametrize("recomputes", [False, True], ids=["saved", "recomputed"])
@pytest.mark.parametrize("state", ["pooler", "first", "last"])
def test_a_head_of_one_state_has_the_gradients_of_all_states(state: str, recomputes: bool) -> None:
    config = config_of("encoder: BERT").model_copy(update={"classifier_input": state})
    model = new_model(config).train()
    if recomputes:
        recompute_blocks(model)
    rows = rows_of(config)
    for example in (*rows, padded(rows), padded(rows, left=True), packed(rows)):
        compare_gradients(model, example.source)


@pytest.mark.parametrize("state", ["pooler", "first"])
def test_a_head_of_one_state_of_images_has_the_gradients_of_all_states(state: str) -> None:
    config = ModelConfig(
        shape="encoder",
        n_layers=2,
        d_model=16,
        n_heads=2,
        d_ff=24,
        positions="learned",
        image_size=(8, 12),
        patch_size=(4, 4),
        n_channels=1,
        max_positions=7,
        heads=("pooler", "sequence"),
        classifier_input=state,
        n_labels=3,
        dropout=0.0,
    )
    pixels = torch.randn(4, 1, 8, 12, generator=torch.Generator().manual_seed(1))
    compare_gradients(new_model(config).train(), Inputs(pixels=pixels))


def compare_gradients(model: Transformer, inputs: Inputs) -> None:
    """Compare the logits and the gradients of one state with those of all."""
    assert reads_one_state(model, inputs, "sequence")
    got = ops.head_output(model, inputs, "sequence")
    gradients = gradients_of(loss_of(got), model)
    with plain():
        expected = ops.head_output(model, inputs, "sequence")
        assert gradient_difference(gradients, gradients_of(loss_of(expected), model)) < 1e-5
    assert_close(got, expected, 1e-5)


def test_training_computes_all_states_if_something_else_reads_them() -> None:
    model = new_model(config_of("encoder: BERT")).train()
    inputs = packed(rows_of(model.config)).source
    for context in (capture(model, kind="state"), record_calls(model)):
        assert reads_one_state(model, inputs, "sequence")
        with context:
            assert not reads_one_state(model, inputs, "sequence")
    compile_blocks(model)
    assert not reads_one_state(model, inputs, "sequence")
    with torch.no_grad():
        assert reads_one_state(model, inputs, "sequence")


def test_training_in_another_order_computes_all_states() -> None:
    model = new_model(config_of("encoder: BERT")).train()
    inputs = packed(rows_of(model.config)).source
    stack: Any = model.encoder
    stack.walk = WalkPart()
    assert not reads_one_state(model, inputs, "sequence")
