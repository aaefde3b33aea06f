from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from trifold.errors import SettingsError
from trifold.nn import Inputs, Transformer

Make = Callable[..., Transformer]

REAL = torch.tensor([[True] * 5, [True, True, True, False, False]])
TOKENS = torch.tensor([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0]])


def encoder(make_model: Make, *heads: str, **values: Any) -> Transformer:
    return make_model(shape="encoder", heads=heads, **values)


@torch.no_grad()
def test_the_masked_lm_head_transforms_then_projects(make_model: Make) -> None:
    model = encoder(
        make_model, "lm", lm_head_transform="gelu", lm_head_bias=True, d_embedding=6, n_labels=3
    )
    hidden, head = model(Inputs(TOKENS, REAL)), model.lm_head
    inner = F.gelu(hidden @ head.dense.weight.t() + head.dense.bias)
    inner = F.layer_norm(inner, (6,), head.norm.weight, head.norm.bias)
    table = model.encoder_embeddings.tokens.weight
    expected = inner @ table.t() + head.bias
    torch.testing.assert_close(
        model.head_outputs(Inputs(TOKENS, REAL))["lm"], expected, rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_logits_are_scaled_then_soft_capped(make_model: Make) -> None:
    model = make_model(shape="decoder", logits_scale=0.25, logit_soft_cap=1.5)
    hidden = model(Inputs(TOKENS))
    plain = 0.25 * hidden @ model.decoder_embeddings.tokens.weight.t()
    torch.testing.assert_close(
        model.lm_head(hidden), 1.5 * torch.tanh(plain / 1.5), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_the_pooler_and_the_heads_that_use_it(make_model: Make) -> None:
    model = encoder(
        make_model,
        "pooler",
        "next-sentence",
        "sequence",
        classifier_input="pooler",
        pooler_width=7,
        n_labels=3,
    )
    inputs = Inputs(TOKENS, REAL)
    outputs, heads = model.head_outputs(inputs), model.heads
    pooled = torch.tanh(
        model(inputs)[:, 0] @ heads["pooler"].dense.weight.t() + heads["pooler"].dense.bias
    )
    torch.testing.assert_close(outputs["pooler"], pooled)
    for name, key, classes in (("next-sentence", "next_sentence", 2), ("sequence", "sequence", 3)):
        out = heads[key].out_proj
        assert outputs[name].shape == (2, classes)
        torch.testing.assert_close(outputs[name], pooled @ out.weight.t() + out.bias)


@pytest.mark.parametrize(
    ("reads", "columns"), [("first", [0, 0]), ("last", [4, 2]), ("eos", [4, 2])]
)
@pytest.mark.parametrize("transform", [None, "relu", "tanh"])
@torch.no_grad()
def test_the_sequence_head_reads_the_configured_state(
    reads: str, columns: list[int], transform: str | None, make_model: Make
) -> None:
    model = encoder(
        make_model,
        "sequence",
        classifier_input=reads,
        classifier_transform=transform,
        classifier_bias=transform is not None,
        n_labels=4,
    )
    inputs, head = Inputs(TOKENS, REAL), model.heads["sequence"]
    state = model(inputs)[torch.arange(2), columns]
    if transform is not None:
        state = getattr(torch, transform)(state @ head.dense.weight.t() + head.dense.bias)
    expected = state @ head.out_proj.weight.t() + (
        0 if head.out_proj.bias is None else head.out_proj.bias
    )
    torch.testing.assert_close(
        model.head_outputs(inputs)["sequence"], expected, rtol=1e-4, atol=1e-5
    )


def test_a_row_without_an_end_token_is_rejected(make_model: Make) -> None:
    model = encoder(make_model, "sequence", classifier_input="eos")
    with pytest.raises(ValueError, match="row 1 has no end-of-sequence token"):
        model.head_outputs(Inputs(torch.tensor([[3, 2], [3, 4]])))


@torch.no_grad()
def test_the_token_and_span_heads_read_all_states(make_model: Make) -> None:
    model = encoder(make_model, "token", "span", n_labels=5)
    inputs = Inputs(TOKENS, REAL)
    outputs, hidden = model.head_outputs(inputs), model(inputs)
    for name, classes in (("token", 5), ("span", 2)):
        out = model.heads[name].out_proj
        assert outputs[name].shape == (2, 5, classes)
        torch.testing.assert_close(outputs[name], hidden @ out.weight.t() + out.bias)
    assert list(model.head_outputs(inputs, heads=["span"])) == ["span"]
    with pytest.raises(KeyError):
        model.head_outputs(inputs, heads=["pooler"])


@torch.no_grad()
def test_a_classifying_encoder_decoder_decodes_its_shifted_source(make_model: Make) -> None:
    model = make_model(
        heads=["lm", "sequence"],
        classifier_input="eos",
        classifier_transform="tanh",
        decoder_start_id=9,
    )
    repeated = torch.tensor([[9, 3, 4, 5, 6], [9, 7, 8, 2, 0]])
    outputs = model.head_outputs(Inputs(TOKENS, REAL))
    expected = model.head_outputs(Inputs(TOKENS, REAL), Inputs(repeated))
    for name in ("lm", "sequence"):
        assert torch.equal(outputs[name], expected[name])


@pytest.mark.parametrize("left", [False, True])
@torch.no_grad()
def test_a_decoder_that_reads_the_source_again_may_begin_with_its_last_token(
    left: bool, make_model: Make
) -> None:
    model = make_model(heads=["span"], decoder_start_id=9, starts_with_last=True)
    for row, real in zip(TOKENS, REAL, strict=True):
        source = row[real]
        expected = model.head_outputs(Inputs(source[None]), Inputs(source.roll(1)[None]))["span"][0]
        columns = torch.arange(7) >= 7 - len(source) if left else torch.arange(7) < len(source)
        padded = torch.zeros(1, 7, dtype=torch.int64)
        padded[0, columns] = source
        got = model.head_outputs(Inputs(padded, columns[None]))["span"][0, columns]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(SettingsError, match="starts_with_last needs shape: encoder-decoder"):
        encoder(make_model, "span", starts_with_last=True)


def test_only_a_decoder_has_an_lm_head_by_default(make_model: Make) -> None:
    bare, decoder = make_model(shape="encoder"), make_model(shape="decoder")
    assert bare.lm_head is None
    assert not bare.heads
    assert decoder.lm_head is not None
    assert make_model(shape="decoder", heads=["token"]).lm_head is None


@torch.no_grad()
def test_head_dropout_applies_in_training_only(make_model: Make) -> None:
    model = encoder(make_model, "token", classifier_dropout=0.5, dropout=0.0)
    inputs = Inputs(TOKENS)
    assert torch.equal(model.head_outputs(inputs)["token"], model.head_outputs(inputs)["token"])
    model.train()
    assert not torch.equal(model.head_outputs(inputs)["token"], model.head_outputs(inputs)["token"])


@pytest.mark.parametrize("reads", ["mean", "mean-logits"])
@pytest.mark.parametrize("real", [None, REAL, REAL.flip(1)])
@torch.no_grad()
def test_the_sequence_head_reads_the_mean_of_real_tokens(
    reads: str, real: torch.Tensor | None, make_model: Make
) -> None:
    model = encoder(
        make_model, "sequence", classifier_input=reads, classifier_transform="gelu", transform_norm=True,
        transform_bias=False, n_labels=4,
    )  # fmt: skip
    inputs, head = Inputs(TOKENS, real), model.heads["sequence"]

    def classify(state: torch.Tensor) -> torch.Tensor:
        inner = F.gelu(state @ head.dense.weight.t())
        inner = F.layer_norm(inner, (16,), head.norm.weight, head.norm.bias)
        return inner @ head.out_proj.weight.t() + head.out_proj.bias

    assert head.dense.bias is None
    got = model.head_outputs(inputs)["sequence"]
    for row, states in enumerate(model(inputs)):
        states = states if real is None else states[real[row]]
        expected = classify(states.mean(0)) if reads == "mean" else classify(states).mean(0)
        torch.testing.assert_close(got[row], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_heads_of_tokens_transform_every_state(make_model: Make) -> None:
    model = encoder(
        make_model,
        "token",
        "span",
        "replaced",
        token_transform="tanh",
        activation="silu",
        n_labels=3,
    )
    hidden, outputs = model(Inputs(TOKENS)), model.head_outputs(Inputs(TOKENS))
    activations = {"token": torch.tanh, "span": torch.tanh, "replaced": F.silu}
    for (name, activation), classes in zip(activations.items(), (3, 2, 1), strict=True):
        head = model.heads[name]
        inner = activation(hidden @ head.dense.weight.t() + head.dense.bias)
        expected = inner @ head.out_proj.weight.t() + head.out_proj.bias
        assert outputs[name].shape == (2, 5, classes)
        torch.testing.assert_close(outputs[name], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_layer_before_spans_is_one_of_a_block(make_model: Make) -> None:
    for placement in ("post", "sandwich"):
        model = encoder(make_model, "span", span_layer=True, norm_placement=placement, gated=True)
        head, layer = model.heads["span"], model.encoder.blocks[0].feed_forward
        layer.load_state_dict(head.layer.state_dict())
        torch.testing.assert_close(
            model.head_outputs(Inputs(TOKENS))["span"], head.out_proj(layer(model(Inputs(TOKENS))))
        )
    with pytest.raises(SettingsError, match="span_layer needs span in heads"):
        encoder(make_model, "token", span_layer=True)
    with pytest.raises(SettingsError, match="span_layer needs residual: sequential"):
        encoder(make_model, "span", span_layer=True, norm_placement="pre", residual="parallel")


def test_a_norm_of_classifiers_needs_a_layer(make_model: Make) -> None:
    with pytest.raises(
        SettingsError, match="transform_norm needs classifier_transform or token_transform"
    ):
        encoder(make_model, "sequence", transform_norm=True)
