"""A layer with an adapter equals the layer whose matrix includes it."""

from __future__ import annotations

import pytest
import torch
from tests.models import randomize

from trifold import fast
from trifold.nn import ops
from trifold.nn.layers import Linear
from trifold.nn.lora import AdaptedLinear, LoRASettings, adapted, merge

KINDS = [{}, {"rslora": True}, {"dora": True}]


def new_layer(**settings):
    torch.manual_seed(1)
    layer = randomize(Linear(6, 5))
    layer.__class__ = AdaptedLinear
    layer.adapt(LoRASettings.parse({"rank": 3, "alpha": 2.0} | settings))
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_adapter_changes_nothing(kind):
    layer, x = new_layer(**kind), torch.randn(7, 6)
    assert not layer.lora_B.any() and layer.lora_A.any()
    torch.testing.assert_close(layer(x), ops.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_and_separate_adapters_agree(kind):
    layer, x = randomize(new_layer(**kind)), torch.randn(7, 6)
    merged = merge({f"a.{name}": p for name, p in layer.named_parameters()}, layer.scale)
    assert merged.keys() == {"a.weight", "a.bias"}
    torch.testing.assert_close(layer(x), ops.linear(x, merged["a.weight"], merged["a.bias"]))


def test_scales():
    assert [new_layer(**kind).scale for kind in KINDS] == pytest.approx([2 / 3, 2 / 3**0.5, 2 / 3])


def test_lengths_of_dora_are_those_of_the_rows():
    layer = randomize(new_layer(dora=True))
    whole = adapted(layer.weight, layer.lora_A, layer.lora_B, layer.scale, layer.lora_magnitude)
    torch.testing.assert_close(whole.norm(dim=1), layer.lora_magnitude.abs())


def test_dropout_applies_to_the_adapter_alone():
    layer, x = new_layer(dropout=0.5), torch.randn(7, 6)
    torch.testing.assert_close(layer(x), ops.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-6)
    randomize(layer)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


def test_fast_operations_do_not_leave_out_adapters():
    layers, x = [randomize(new_layer()) for _ in range(2)], torch.randn(80, 6)
    expected = [layer(x) for layer in layers]
    fast.enable()
    for got, wanted in zip(ops.linears(x, layers), expected, strict=True):
        torch.testing.assert_close(got, wanted)
