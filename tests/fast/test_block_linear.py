"""Matmuls with weights in blocks: their error is that of activations in 16 bits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.fast.test_block_weight import matrix_of, weights_of
from torch.nn import functional as F

from trifold.fast import block_linear, layers
from trifold.fast.block_weight import BlockWeight
from trifold.fast.instruction import BLOCK_PANELS, QUANTIZE
from trifold.fast.instruction_sets import has_panels
from trifold.fast.thread_pool import execute_one

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")


@pytest.fixture(scope="module", autouse=True)
def _always_by_instructions() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(layers, "MIN_WEIGHTS", 0)
    with torch.inference_mode():
        yield
    patch.undo()


WIDTHS = st.one_of(st.integers(1, 6).map(lambda blocks: 32 * blocks), st.integers(1, 140))


@given(st.integers(1, 8), st.integers(1, 70), WIDTHS, st.integers(0, 2**31))
@settings(max_examples=40)
def test_the_error_is_at_most_half_a_step_of_each_activation(
    rows: int, outputs: int, inputs: int, seed: int
) -> None:
    x = matrix_of(rows, inputs, seed + 1)
    x[0, :32] = 0
    bias = torch.linspace(-1, 1, outputs)
    largest = [part.abs().amax(-1, keepdim=True).expand_as(part) for part in x.split(32, 1)]
    steps = torch.cat(largest, 1) / (127 * 256)
    for weight in weights_of(matrix_of(outputs, inputs, seed)).values():
        dense = weight.dequantize()
        exact = F.linear(x.double(), dense.double(), bias.double())
        # Half a step, and what fp32 rounds.
        bound = F.linear(steps / 2 + 1e-6 * x.abs(), dense.abs()) + 1e-6
        assert ((layers.linear(x, weight, bias) - exact).abs() <= bound).all()


@pytest.mark.parametrize("width", [96, 33])
def test_few_rows_do_not_depend_on_their_number(width: int) -> None:
    x = matrix_of(7, width)
    for weight in weights_of(matrix_of(40, width)).values():
        together = layers.linear(x, weight)
        assert torch.equal(together, torch.cat([layers.linear(row, weight) for row in x.split(1)]))


@pytest.mark.parametrize("decoded", [2**22, 48 * 96])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("width", [96, 31, 40])
def test_many_rows_are_multiplied_by_values_in_bf16(
    decoded: int, biased: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trifold.fast.block_linear.DECODED", decoded)
    monkeypatch.setattr(block_linear, "emulates_bf16_products", lambda: False)
    x = matrix_of(2 * 25, width).view(2, 25, width).bfloat16()
    bias = torch.linspace(-1, 1, 70).bfloat16() if biased else None
    for weight in weights_of(matrix_of(70, width)).values():
        dense = weight.dequantize().bfloat16().double()
        exact = F.linear(x.double(), dense, None if bias is None else bias.double())
        error = (layers.linear(x, weight, bias) - exact).abs()
        assert (error <= 2**-8 * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("width", [96, 100])
@pytest.mark.parametrize(
    ("rows", "emulates", "dtype"),
    [
        (19, False, torch.bfloat16),
        (100, True, torch.bfloat16),
        (19, True, torch.float32),
        (100, True, torch.float32),
    ],
)
def test_some_rows_and_all_without_instructions_for_bf16_are_multiplied_as_few_are(
    rows: int,
    emulates: bool,
    dtype: torch.dtype,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_linear, "emulates_bf16_products", lambda: emulates)
    x = matrix_of(rows, width).to(dtype)
    bias = torch.linspace(-1, 1, 40)
    for weight in weights_of(matrix_of(40, width)).values():
        few = [layers.linear(part.float(), weight, bias).to(dtype) for part in x.split(5)]
        assert torch.equal(layers.linear(x, weight, bias), torch.cat(few))


@pytest.mark.parametrize("emulates", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_apart_are_multiplied_as_contiguous_ones_are(
    emulates: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_linear, "emulates_bf16_products", lambda: emulates)
    wide = matrix_of(100, 96).to(dtype)
    for weight in weights_of(matrix_of(40, 40)).values():
        for rows in (3, 20, 100):
            for x in (wide[:rows, :40], wide[:rows, 8:48], wide[:40, :rows].t()):
                apart = layers.linear(x, weight)
                together = layers.linear(x.contiguous(), weight)
                # A library may read rows that are apart in another order.
                torch.testing.assert_close(apart, together, rtol=2**-7, atol=1e-4)


def test_an_instruction_refuses_rows_apart() -> None:
    with pytest.raises(AssertionError, match="x: not contiguous"):
        execute_one(opcode=QUANTIZE, units=2, x=torch.ones(2, 64)[:, :32])


def test_matmuls_of_many_rows_are_instructions_of_their_own_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_linear, "emulates_bf16_products", lambda: True)
    executed = set[int]()
    execute = block_linear.execute

    def counted(program: np.ndarray) -> None:
        executed.update(program["opcode"].tolist())
        execute(program)

    monkeypatch.setattr(block_linear, "execute", counted)
    layers.linear(matrix_of(12, 64), weights_of(matrix_of(40, 64))["8 bits"])
    assert (BLOCK_PANELS in executed) == has_panels()


def test_products_with_several_weights_are_those_with_each() -> None:
    x = matrix_of(24, 96).view(2, 12, 96).bfloat16()
    weights = [*weights_of(matrix_of(40, 96)).values(), *weights_of(matrix_of(16, 96, 1)).values()]
    biases = [None if number % 2 else torch.ones(len(each)) for number, each in enumerate(weights)]
    assert block_linear.supports_block_linears(x, weights)
    found = block_linear.block_linears(x, weights, biases)
    for y, weight, bias in zip(found, weights, biases, strict=True):
        assert torch.equal(y, layers.linear(x, weight, bias))
    assert not block_linear.supports_block_linears(x, [weights[0], torch.ones(16, 96)])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_activations_that_are_not_finite_stay_so(value: float) -> None:
    for weight in weights_of(matrix_of(32, 64)).values():
        for rows in (1, 12, 50):
            x = torch.ones(rows, 64).bfloat16()
            x[0, 40] = value
            y = layers.linear(x, weight)
            assert not y[0].isfinite().any() and y[1:].isfinite().all()


def test_scales_that_are_no_number_stay_so_in_bf16() -> None:
    """Rounding the NaN whose bits are all ones could carry into its sign."""
    scales = torch.full((16, 2), 0x7FFF, dtype=torch.int16).view(torch.float16)
    weight = BlockWeight.from_codes(torch.ones(16, 2, 32, dtype=torch.uint8), scales)
    assert layers.linear(torch.ones(50, 64).bfloat16(), weight).isnan().all()


@pytest.mark.parametrize("decoded", [2**22, 16 * 64])
def test_many_rows_in_fp32_are_exact(decoded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trifold.fast.block_linear.DECODED", decoded)
    monkeypatch.setattr(block_linear, "emulates_bf16_products", lambda: False)
    x = matrix_of(12, 64)
    bias = torch.linspace(-1, 1, 40)
    for weight in weights_of(matrix_of(40, 64)).values():
        expected = F.linear(x, weight.dequantize(), bias)
        torch.testing.assert_close(layers.linear(x, weight, bias), expected)


def test_float16_scales_have_their_values_in_the_loop() -> None:
    from numba import njit

    from trifold.fast.block_tile import half_to_float

    @njit
    def convert(halves, out):  # type: ignore[no-untyped-def]
        for j in range(len(halves)):
            out[j] = half_to_float(halves[j])

    halves = np.arange(2**16, dtype=np.uint16)
    out = np.empty(2**16, np.float32)
    convert(halves, out)
    np.testing.assert_array_equal(out, halves.view(np.float16).astype(np.float32))


def test_a_weight_in_blocks_moves_with_its_layer() -> None:
    weight = BlockWeight.quantize(matrix_of(20, 64), 4)
    before = weight.dequantize()
    assert weight.to(torch.bfloat16).dtype is torch.bfloat16
    assert torch.equal(weight.to(torch.float32).dequantize(), before)
