"""Weights in blocks: their values, layout and rounding."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from trifold.fast.block_weight import BlockWeight
from trifold.hub.gguf.blocks import TYPES, dequantize
from trifold.hub.gguf.matrices import reader_of
from trifold.hub.gguf.quantize import quantize

KINDS = {kind.name: kind for kind in TYPES.values()}
# Types of blocks that stay as they are.
STORED = ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL")
BITS = (8, 6, 5, 4)
# Types whose blocks nothing here writes -> one with the same bytes and other values.
LIKE = {"IQ4_NL": "Q4_0"}


def matrix_of(rows: int, inputs: int, seed: int = 0) -> Tensor:
    """A matrix (rows, inputs) whose rows differ in size."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, inputs, generator=generator)
    return numbers * torch.rand(rows, 1, generator=generator).exp2_()


def weights_of(matrix: Tensor) -> dict[str, BlockWeight]:
    """The matrix in each kind of block."""
    weights = {f"{bits} bits": BlockWeight.quantize(matrix, bits) for bits in BITS}
    if matrix.shape[1] % 32:  # files have whole blocks only
        return weights
    for name in STORED:
        weights[name] = read(name, matrix)
    return weights


def read(name: str, matrix: Tensor) -> BlockWeight:
    """The matrix in blocks of this type of a file."""
    return reader_of(KINDS[name])(stored_blocks(matrix, name), tuple(matrix.shape))


def stored_blocks(matrix: Tensor, name: str) -> Tensor:
    """The bytes of the matrix in blocks of this type; of those in LIKE, of values of its size."""
    if name in LIKE:
        matrix = matrix / 16
    return torch.from_numpy(quantize(matrix, KINDS[LIKE.get(name, name)]))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=20)
def test_blocks_of_files_keep_their_values(rows: int, blocks: int, seed: int) -> None:
    matrix = matrix_of(rows, 32 * blocks, seed)
    for name in STORED:
        expected = dequantize(stored_blocks(matrix, name), KINDS[name]).view_as(matrix)
        assert torch.equal(read(name, matrix).dequantize(), expected)


def test_eight_bits_are_those_of_a_file() -> None:
    matrix = matrix_of(33, 64)
    matrix[1] = 0
    matrix[2, :32] = 1e-39  # a scale without an inverse
    weights = weights_of(matrix)
    assert torch.equal(weights["8 bits"].dequantize(), weights["Q8_0"].dequantize())


def test_four_bits_have_a_smaller_error_than_those_of_a_file() -> None:
    """Q4_K has 4.5 bits, too, but scales and offsets that are shared by 256 values."""
    matrix = matrix_of(64, 256)
    blocks = torch.from_numpy(quantize(matrix, KINDS["Q4_K"]))
    values = {name: weight.dequantize() for name, weight in weights_of(matrix).items()}
    values["Q4_K"] = dequantize(blocks, KINDS["Q4_K"]).view_as(matrix)
    errors = {name: (each - matrix).square().mean(1) for name, each in values.items()}
    assert (errors["4 bits"] < errors["Q4_0"]).all()
    assert errors["4 bits"].mean() < 0.75 * errors["Q4_0"].mean()
    assert errors["4 bits"].mean() < 1.08 * errors["Q4_K"].mean()


def test_five_bits_have_a_smaller_error_than_those_of_a_file() -> None:
    matrix = matrix_of(64, 256)
    values = {name: weight.dequantize() for name, weight in weights_of(matrix).items()}
    errors = {name: (each - matrix).square().mean(1) for name, each in values.items()}
    assert (errors["5 bits"] < errors["Q5_0"]).all()
    assert errors["5 bits"].mean() < 0.35 * errors["4 bits"].mean()
    assert errors["6 bits"].mean() < 0.30 * errors["5 bits"].mean()


@given(st.integers(1, 40), st.integers(1, 140), st.sampled_from(BITS), st.integers(0, 2**31))
@settings(max_examples=20)
def test_a_last_block_is_rounded_as_if_zeros_filled_it(
    rows: int, inputs: int, bits: int, seed: int
) -> None:
    matrix = matrix_of(rows, inputs, seed)
    filled = torch.cat([matrix, torch.zeros(rows, -inputs % 32)], 1)
    weight = BlockWeight.quantize(matrix, bits)
    found = weight.dequantize()
    assert weight.shape == found.shape == matrix.shape and found.is_contiguous()
    assert torch.equal(found, BlockWeight.quantize(filled, bits).dequantize()[:, :inputs])


@pytest.mark.parametrize("bits", BITS)
def test_zeros_stay_zeros(bits: int) -> None:
    matrix = matrix_of(3, 64)
    matrix[1, 32:] = 0
    assert not BlockWeight.quantize(matrix, bits).dequantize()[1, 32:].any()


@pytest.mark.parametrize("width", [96, 1, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_ways_to_read_a_weight_agree(dtype: torch.dtype, width: int) -> None:
    for weight in weights_of(matrix_of(37, width)).values():
        weight.to(dtype)
        dense = weight.dequantize()
        assert weight.scales.dtype is torch.float16 and dense.dtype is dtype
        indices = torch.tensor([[0, 36], [17, 16]])
        assert torch.equal(F.embedding(indices, weight), dense[indices])
        x = torch.randn(2, 3, width, dtype=dtype, requires_grad=True)
        z = x.detach().clone().requires_grad_()
        bias = torch.randn(37, dtype=dtype)
        F.linear(x, weight, bias).square().sum().backward()
        F.linear(z, dense, bias).square().sum().backward()
        close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 40 * torch.finfo(dtype).eps}
        torch.testing.assert_close(F.linear(x, weight, bias), F.linear(z, dense, bias), **close)
        torch.testing.assert_close(x.grad / 40, z.grad / 40, **close)


def test_a_matrix_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_of(70, 64)
    x = torch.randn(3, 64)
    whole = {name: (w.linear(x, None), w.values) for name, w in weights_of(matrix).items()}
    monkeypatch.setattr("trifold.fast.block_weight.CHUNK", 20 * 64)
    for name, weight in weights_of(matrix).items():
        assert torch.equal(weight.values, whole[name][1])
        torch.testing.assert_close(weight.linear(x, None), whole[name][0])


@pytest.mark.parametrize("bits", BITS)
def test_a_transposed_matrix_is_rounded_as_its_copy(bits: int) -> None:
    """The matrices of GPT-2 are stored transposed."""
    matrix = matrix_of(64, 96).T
    found = BlockWeight.quantize(matrix, bits)
    assert torch.equal(
        found.dequantize(), BlockWeight.quantize(matrix.contiguous(), bits).dequantize()
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e8])
@pytest.mark.parametrize("bits", BITS)
def test_values_that_have_no_scale_are_refused(value: float, bits: int) -> None:
    matrix = matrix_of(3, 64)
    matrix[1, 40] = value
    with pytest.raises(ValueError, match=f"not finite or too large for {bits} bits"):
        BlockWeight.quantize(matrix, bits)
