from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trifold.train.trainer import FlatWeights


class Net(nn.Module):
    """Two matrices, one used twice, and buffers of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.table = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, x):
        return F.relu(self.inner(x * self.scale)) @ self.table @ self.table.t()


def test_parameters_keep_their_values_and_become_views_of_one_vector():
    net = Net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    weights = FlatWeights(net, torch.float32)
    assert weights.master.shape == (sum(p.numel() for p in before.values()),)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().data_ptr() == weights.master.untyped_storage().data_ptr()
    weights.master.fill_(3.0)
    assert all(bool((parameter == 3).all()) for parameter in net.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_that_of_autograd_summed_over_micro_batches(dtype):
    net, plain = Net(), Net()
    plain.load_state_dict(net.state_dict())
    if dtype is torch.bfloat16:
        plain = plain.to(dtype)
    weights = FlatWeights(net, dtype)
    wanted = torch.zeros_like(weights.master)
    for _ in range(3):
        x = torch.randn(2, 4, dtype=dtype)
        net(x).square().sum().backward()
        weights.collect()
        gradients = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
        wanted += torch.cat([gradient.float().flatten() for gradient in gradients])
    found = weights.take_gradient()
    assert found.dtype is torch.float32
    assert torch.equal(found, wanted)


def test_a_gradient_is_taken_once():
    net = Net()
    weights = FlatWeights(net, torch.float32)
    x = torch.randn(2, 4)
    net(x).sum().backward()
    weights.collect()
    first = weights.take_gradient().clone()
    net(x).sum().backward()
    weights.collect()
    assert torch.equal(weights.take_gradient(), first)
    with pytest.raises(AssertionError):
        weights.take_gradient()


def test_gradients_stay_views_though_backward_runs_again_and_again():
    net = Net()
    weights = FlatWeights(net, torch.bfloat16)
    places = [parameter.grad.data_ptr() for parameter in net.parameters()]
    for _ in range(2):
        net(torch.randn(2, 4, dtype=torch.bfloat16)).sum().backward()
        weights.collect()
    assert [parameter.grad.data_ptr() for parameter in net.parameters()] == places


def test_in_bf16_publishing_rounds_the_master_once_and_loses_no_small_step():
    net = Net()
    weights = FlatWeights(net, torch.bfloat16)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.bfloat16}
    start = weights.master.clone()
    for _ in range(64):  # each far below what bf16 can add to 1
        weights.master += 2.0**-14
        weights.publish()
    named = weights.named(weights.master)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, named[name].to(torch.bfloat16))
    assert torch.allclose(weights.master, start + 2.0**-8)


def test_buffers_follow_the_arithmetic_but_whole_numbers_stay_whole():
    net = Net()
    FlatWeights(net, torch.bfloat16)
    assert net.scale.dtype is torch.bfloat16
    assert net.places.dtype is torch.int64


def test_named_gives_views_in_the_order_of_the_vector():
    net = Net()
    weights = FlatWeights(net, torch.float32)
    vector = torch.randn_like(weights.master)
    named = weights.named(vector)
    assert {name: value.shape for name, value in named.items()} == {
        name: parameter.shape for name, parameter in net.named_parameters()
    }
    assert torch.equal(torch.cat([view.flatten() for view in named.values()]), vector)


def test_a_tied_parameter_is_there_once():
    net = Net()
    net.again = net.table
    assert FlatWeights(net, torch.float32).names.count("table") == 1
