"""Matmuls with weights in blocks: their error is that of activations in 8 bits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.fast.test_block_weight import matrix_of, weights_of
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import layers
from trifold.fast.block_weight import BlockWeight

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")


@pytest.fixture(scope="module", autouse=True)
def _always_by_instructions() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(layers, "MIN_WEIGHTS", 0)
    with torch.inference_mode():
        yield
    patch.undo()


def rounded(x: Tensor) -> Tensor:
    """x (R, K) with each 32 of a row rounded to 8 bits."""
    blocks = x.view(len(x), -1, 32)
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(scales > 0, (blocks / scales).round() * scales, 0).view_as(x)


@given(st.integers(1, 8), st.integers(1, 70), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=25)
def test_products_are_those_of_rounded_activations(
    rows: int, outputs: int, blocks: int, seed: int
) -> None:
    matrix = matrix_of(outputs, 32 * blocks, seed)
    x = matrix_of(rows, 32 * blocks, seed + 1)  # fp32: numbers of bf16 are often between steps
    x[0, :32] = 0
    bias = torch.linspace(-1, 1, outputs)
    for weight in weights_of(matrix).values():
        expected = F.linear(rounded(x), weight.dequantize(), bias)
        found = layers.linear(x, weight, bias)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_the_error_is_at_most_half_a_step_of_each_activation() -> None:
    x = matrix_of(5, 256).bfloat16()
    steps = x.float().view(5, -1, 32).abs().amax(-1, keepdim=True).expand(-1, -1, 32) / 127
    for weight in weights_of(matrix_of(48, 256)).values():
        plain = weight.linear(x.float(), None)
        bound = F.linear(steps.reshape(5, -1) / 2, weight.dequantize().abs())
        error = (layers.linear(x, weight, None, torch.float32) - plain).abs()
        assert (error <= bound * 1.001).all() and (error > 0).any()


def test_rows_do_not_depend_on_their_number() -> None:
    x = matrix_of(19, 96).bfloat16()
    for weight in weights_of(matrix_of(40, 96)).values():
        together = layers.linear(x, weight)
        assert torch.equal(together, torch.cat([layers.linear(row, weight) for row in x.split(1)]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_activations_that_are_not_finite_stay_so(value: float) -> None:
    for weight in weights_of(matrix_of(32, 64)).values():
        for rows in (1, 12):
            x = torch.ones(rows, 64).bfloat16()
            x[0, 40] = value
            y = layers.linear(x, weight)
            assert not y[0].isfinite().any() and y[1:].isfinite().all()


def test_many_rows_in_fp32_are_exact() -> None:
    x = matrix_of(12, 64)
    for weight in weights_of(matrix_of(32, 64)).values():
        torch.testing.assert_close(layers.linear(x, weight), x @ weight.dequantize().T)


def test_loops_equal_the_instruction_of_the_processor() -> None:
    from numba import njit

    from trifold.fast.block_tile import HAS_VNNI, loop_tile, new_tile

    if not HAS_VNNI:
        pytest.skip("this processor lacks the instruction")
    weights = weights_of(matrix_of(16, 96))
    for weight in (weights["8 bits"], weights["4 bits"], weights["Q4_1"]):
        bits, has_offsets = weight.bits, weight.has_offsets
        tile = new_tile(2, bits, has_offsets=has_offsets)

        @njit
        def by_instruction(v, s, x, xs, terms, out, tile=tile):  # type: ignore[no-untyped-def]
            tile(v, s, 3, x, xs, terms, out, 64)

        @njit
        def by_loop(v, s, x, xs, terms, out, bits=bits, has=has_offsets):  # type: ignore[no-untyped-def]
            loop_tile(2, bits, has, v, s, 3, x, xs, terms, out, 64)

        generator = np.random.default_rng(0)
        x = generator.integers(-127, 128, (2, 96)).astype(np.int8)
        scales = generator.random((2, 3)).astype(np.float32)
        terms = generator.integers(-999, 999, (2, 3)).astype(np.int32)
        if has_offsets:
            terms = terms.astype(np.float32)
        outs = np.zeros((2, 2, 16), np.float32)
        arrays = [each.ctypes.data for each in (x, scales, terms)]
        for function, out in ((by_instruction, outs[0]), (by_loop, outs[1])):
            function(weight.values.data_ptr(), weight.scales.data_ptr(), *arrays, out.ctypes.data)
        np.testing.assert_allclose(outs[0], outs[1], rtol=1e-5, atol=1e-4)


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
