"""fp32 matmuls with oneDNN equal those of PyTorch, and are chosen by processor and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from trifold import fast
from trifold.errors import UsageError
from trifold.fast import matmul
from trifold.fast.matmul import MatmulRule
from trifold.nn import ops
from trifold.nn.layers import Linear

EVERYWHERE = MatmulRule(rows=0, width=0, size=0, reuse=0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the results of oneDNN, which computes every matmul that it supports."""
    shapes: list[tuple[int, ...]] = []
    original = matmul.onednn_linear

    def recorded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = original(x, weight, bias)
        shapes.append(tuple(out.shape))
        return out

    monkeypatch.setattr(matmul, "onednn_linear", recorded)
    monkeypatch.setattr(matmul, "rule", lambda: EVERYWHERE)
    return shapes


def assert_as_exact(got: Tensor, expected: Tensor, exact: Tensor) -> None:
    """Whether the error is at most a few times that of PyTorch's matmul."""
    scale = exact.abs().max().item() if exact.numel() else 0.0
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * (1 + scale))
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=1e-5 * (1 + scale))


# --- the same results -----------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": Tensor.contiguous,
    "transposed": lambda x: x.mT.contiguous().mT,
    "columns": lambda x: F.pad(x, (1, 3))[..., 1:-3],
}


def with_gradients(
    linear: Callable[..., Tensor],
    values: list[Tensor],
    g: Tensor,
    view: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """The output and the gradients, of views of the inputs."""
    leaves = [each.clone().requires_grad_() for each in values]
    y = linear(*map(view, leaves[:2]), *leaves[2:])
    return [y, *torch.autograd.grad(y, leaves, view(g))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inputs", [1, 17, 64])
def test_outputs_and_gradients_of_small_and_odd_shapes(
    inputs: int, layout: str, calls: list[tuple[int, ...]]
) -> None:
    view = LAYOUTS[layout]
    for rows, outputs, has_bias in product([(0,), (1,), (2, 3), (33,)], [1, 5, 48], [False, True]):
        values = [torch.randn(*rows, inputs), torch.randn(outputs, inputs)]
        if has_bias:
            values.append(torch.randn(outputs))
        g = torch.randn(*rows, outputs)
        got = with_gradients(matmul.linear, values, g, view)
        expected = with_gradients(F.linear, values, g, view)
        exact = with_gradients(F.linear, [each.double() for each in values], g.double(), view)
        for each in zip(got, expected, exact, strict=True):
            assert_as_exact(*each)
    assert len(calls) >= 3 * 3 * 2 * 3


def test_operations_of_the_model(calls: list[tuple[int, ...]]) -> None:
    """Each calls oneDNN for all its matmuls."""
    layers = [Linear(24, outputs) for outputs in (24, 8, 40)]
    for layer in layers:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    x = torch.randn(2, 40, 24)
    targets = torch.arange(80) % 40 - 1

    def outputs(x: Tensor) -> dict[str, Tensor]:
        return {
            "linear": ops.linear(x, layers[0].weight, layers[0].bias),
            "linears": torch.cat(ops.linears(x, layers), -1),
            "activation_linear": ops.activation_linear(layers[1], F.silu, x),
            "cross_entropy": ops.cross_entropy(
                x.flatten(0, 1), layers[2].weight, layers[2].bias, targets, 0.1
            )[0],
        }

    def results(name: str) -> list[Tensor]:
        own = x.clone().requires_grad_()
        y = outputs(own)[name]
        parameters = [each for layer in layers for each in layer.parameters()]
        found = torch.autograd.grad(y.square().sum(), [own, *parameters], allow_unused=True)
        return [y, *(each for each in found if each is not None)]

    for name, matmuls in (("linear", 3), ("linears", 3), ("activation_linear", 3)):
        calls.clear()
        got = results(name)
        assert len(calls) >= matmuls, name
        with fast.disabled():
            expected = results(name)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    calls.clear()
    got = results("cross_entropy")
    assert {(40, 80), (24, 80), (40, 24)} <= set(calls)
    with fast.disabled():
        for one, other in zip(got, results("cross_entropy"), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_second_derivatives(calls: list[tuple[int, ...]]) -> None:
    weight = torch.randn(7, 5)

    def second(linear: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        x = torch.linspace(-1, 1, 15).view(3, 5).requires_grad_()
        (first,) = torch.autograd.grad(linear(x, weight).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(matmul.linear), second(F.linear), rtol=1e-4, atol=1e-3)
    assert len(calls) >= 4


def test_frozen_weights_save_no_inputs(calls: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(7, 5)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        matmul.linear(x, weight)
    assert [each.shape for each in saved] == [weight.shape]


# --- what stays with PyTorch ----------------------------------------------------------------------


def count_flops(x: Tensor, weight: Tensor) -> None:
    with FlopCounterMode(display=False) as counter:
        matmul.linear(x, weight)
    assert counter.get_total_flops() == 2 * 3 * 7 * 5


def autocast(x: Tensor, weight: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul.linear(x, weight).dtype is torch.bfloat16


def differentiate_forward(x: Tensor, weight: Tensor) -> None:
    y, change = torch.func.jvp(lambda x: matmul.linear(x, weight), (x,), (x,))
    torch.testing.assert_close(y, change)


def expand_bias(x: Tensor, weight: Tensor) -> None:
    torch.testing.assert_close(
        matmul.linear(x, weight, torch.ones(1).expand(7)), x @ weight.t() + 1
    )


OTHERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "automatic casts": autocast,
    "a mode": count_flops,
    "forward mode": differentiate_forward,
    "vmap": lambda x, weight: torch.vmap(lambda row: matmul.linear(row, weight))(x),
    "a bias of one element": expand_bias,
    "float64": lambda x, weight: matmul.linear(x.double(), weight.double()),
    "bfloat16": lambda x, weight: matmul.linear(x.bfloat16(), weight.bfloat16()),
    "meta": lambda x, weight: matmul.linear(x.to("meta"), weight.to("meta")),
    "overlapping rows": lambda x, weight: matmul.linear(x, weight.flatten().as_strided((7, 5), (2, 1))),
    "a trace": lambda x, weight: torch.jit.trace(matmul.linear, (x, weight), check_trace=False),
    "a graph": lambda x, weight: torch.export.export(Linear(5, 7), (x,)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_matmuls_are_those_of_pytorch(name: str, calls: list[tuple[int, ...]]) -> None:
    OTHERS[name](torch.randn(3, 5), torch.randn(7, 5))
    assert not calls


# --- the choice -----------------------------------------------------------------------------------


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MatmulRule | None]]:
    """The rule for a processor, and for a value of the environment variable."""

    def chosen(family: tuple[str, int] | None, value: str | None = None) -> MatmulRule | None:
        monkeypatch.delenv(matmul.VARIABLE, raising=False)
        if value is not None:
            monkeypatch.setenv(matmul.VARIABLE, value)
        monkeypatch.setattr(matmul, "processor_family", lambda: family)
        matmul.rule.cache_clear()
        return matmul.rule()

    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    yield chosen
    monkeypatch.undo()
    matmul.rule.cache_clear()


def test_the_library_follows_from_the_processor(
    choose: Callable[..., MatmulRule | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(("AuthenticAMD", 26)) == matmul.ZEN_5
    assert choose(("AuthenticAMD", 25)) == matmul.ZEN_4
    assert choose(("GenuineIntel", 6)) is None and matmul.library() == "pytorch"
    assert choose(None) is None
    assert choose(("AuthenticAMD", 26), "pytorch") is None
    assert choose(None, "onednn") is not None and matmul.library() == "onednn"
    with pytest.raises(UsageError, match="TRIFOLD_FP32_MATMUL=mkl: set one of auto, pytorch"):
        choose(None, "mkl")
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    assert choose(("AuthenticAMD", 25)) is None


@pytest.mark.parametrize("fault", ["missing", "wrong", "other signature"])
def test_an_operator_that_fails_its_check_is_not_used(
    fault: str, choose: Callable[..., MatmulRule | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if fault == "missing":
            raise AttributeError
        if fault == "other signature":
            raise RuntimeError
        return F.linear(x, weight)

    monkeypatch.setattr(matmul, "onednn_linear", broken)
    matmul._is_exact.cache_clear()
    try:
        assert choose(("AuthenticAMD", 26)) is None
        assert choose(("AuthenticAMD", 26), "onednn") is None
    finally:
        matmul._is_exact.cache_clear()


def test_the_rule_has_only_large_matrices(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "rule", lambda: MatmulRule(rows=8, width=4, size=400, reuse=12))
    for rows, inputs, outputs in ((7, 8, 8), (8, 3, 20), (8, 7, 7), (8, 8, 8)):
        matmul.linear(torch.randn(rows, inputs), torch.randn(outputs, inputs))
    for outputs in (11, 13):
        matmul.linear(torch.randn(8, 10).t(), torch.randn(outputs, 8))
    assert calls == [(8, 8), (10, 13)]
    calls.clear()
    uneven = MatmulRule(rows=8, width=4, size=400, reuse=12, even=12, uneven_size=800)
    monkeypatch.setattr(matmul, "rule", lambda: uneven)
    for rows, outputs in ((11, 8), (11, 10), (12, 8)):
        matmul.linear(torch.randn(rows, 8), torch.randn(outputs, 8))
    assert calls == [(11, 10), (12, 8)]


def test_repeated_matmuls_use_onednn_from_fewer_rows_on(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "rule", lambda: matmul.ZEN_4)
    monkeypatch.setattr(matmul, "REPEATED", MatmulRule(rows=4, width=4, size=150, reuse=2**62))
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    matmul.linear(x, weight)
    matmul.repeated_linear(x[:3], weight)
    assert not calls
    torch.testing.assert_close(matmul.repeated_linear(x, weight), x @ weight.T)
    assert calls == [(4, 6)]
    monkeypatch.setattr(matmul, "rule", lambda: None)
    matmul.repeated_linear(x, weight)
    assert len(calls) == 1
