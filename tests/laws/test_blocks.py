"""A decoder with weights in blocks computes what their values do: texts, decoding steps and gradients."""

from __future__ import annotations

import pytest
import torch
from tests.laws.kernels import count_kernels
from tests.laws.operations import lower_thresholds
from tests.models import add_noise
from torch import Tensor

from trifold import fast
from trifold.fast.block_layout import BlockLayout
from trifold.fast.block_weight import BlockWeight
from trifold.fast.file_weight import KINDS, FileRows, FileWeight
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.huge_pages import HugeMemory
from trifold.hub.fill import fill_model
from trifold.hub.gguf.blocks import TYPES
from trifold.hub.gguf.matrices import reader_of
from trifold.nn import Inputs, ModelConfig, Transformer, ops

CONFIG = ModelConfig.parse(
    {
        **{"shape": "decoder", "positions": "rotary", "norm_placement": "pre", "dropout": 0.0},
        **{"vocab_size": 50, "max_positions": 64, "d_model": 64, "n_heads": 4, "d_ff": 96},
        **{"n_layers": 2},
    }
)
READERS = {kind.name: reader_of(kind) for kind in TYPES.values() if kind.name in KINDS}
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}  # of the largest value


@pytest.fixture(autouse=True)
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast operations, with low thresholds."""
    pytest.importorskip("numba")
    count_kernels(monkeypatch)
    lower_thresholds(monkeypatch)
    fast.enable()


def models_of(bits: int, dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    """A model with weights in blocks, and one with their values in float32."""
    torch.manual_seed(3)
    dense = add_noise(Transformer(CONFIG), 0.2).eval()
    blocks = Transformer(CONFIG)
    own = [(title, p.detach().clone()) for title, p in dense.named_parameters()]
    fill_model(blocks, own, dtype, "cpu", stored=f"int{bits}")
    stored = {name: m for name, m in blocks.named_modules() if isinstance(m, BlockWeight)}
    assert any(weight.bits == bits for weight in stored.values())
    with torch.no_grad():
        for name, weight in stored.items():
            dense.get_parameter(name).copy_(weight.dequantize())
    return blocks.eval(), dense


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """The values are equal to the precision of the type."""
    assert (found.float() - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bits", [8, 4])
def test_logits_are_those_of_the_values(bits: int, dtype: torch.dtype) -> None:
    blocks, dense = models_of(bits, dtype)
    for length in (5, 11, 30):  # few rows, some, and many
        inputs = Inputs(torch.randint(50, (1, length)))
        with torch.inference_mode():
            assert_near(blocks.head_outputs(inputs)["lm"], dense.head_outputs(inputs)["lm"], dtype)


def rows_of(kind: str, count: int, order: Tensor | None) -> FileRows:
    """Rows of three blocks of a file."""
    table = torch.randint(0, 100, (count, 3 * KINDS[kind].bytes), dtype=torch.uint8)
    return FileRows(table, order, kind, READERS[kind])


@pytest.mark.parametrize("kind", READERS)
def test_blocks_of_a_file_are_laid_out_as_by_operators(kind: str) -> None:
    order = torch.randperm(50)[:37]
    source = rows_of(kind, 50, order)
    layout = BlockLayout([source], torch.bfloat16, HugeMemory())
    [is_finite] = layout.finish()
    [found] = layout.weights
    expected = READERS[kind](source.table[order], source.shape)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.scales, expected.scales)
    assert is_finite


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize("kind", READERS)
def test_rows_in_a_file_have_the_bits_of_laid_out_ones(
    kind: str, is_moved: bool, dtype: torch.dtype
) -> None:
    source = rows_of(kind, 37, torch.randperm(37) if is_moved else None)
    layouts = [
        BlockLayout([source], dtype, HugeMemory(), in_place=in_place) for in_place in (True, False)
    ]
    assert all(all(layout.finish()) for layout in layouts)
    [in_file], [laid_out] = (layout.weights for layout in layouts)
    assert isinstance(in_file, FileWeight)
    assert in_file.table.data_ptr() == source.table.data_ptr()
    assert not isinstance(laid_out, FileWeight)
    bias = torch.randn(37).to(dtype)
    for count in (1, 5, 8, 11, 30, 60):
        x = torch.randn(count, source.shape[1]).to(dtype)
        with torch.inference_mode():
            assert torch.equal(ops.linear(x, in_file, bias), ops.linear(x, laid_out, bias))
    assert torch.equal(in_file.dequantize(), laid_out.dequantize())
    indices = torch.randint(37, (2, 5))
    assert torch.equal(ops.embedding(indices, in_file), ops.embedding(indices, laid_out))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bits", [8, 4])
def test_gradients_pass_through_blocks(bits: int, dtype: torch.dtype) -> None:
    blocks, dense = models_of(bits, dtype)
    x = torch.randn(7, 64)
    found, expected = (
        torch.autograd.grad(model.lm_head(part).square().sum(), part)[0]
        for model, part in (
            (blocks, x.to(dtype).requires_grad_()),
            (dense, x.clone().requires_grad_()),
        )
    )
    assert_near(found, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [1, 30, 40])
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_products_of_weights_in_16_bits_are_those_of_their_values(
    rows: int, dtype: torch.dtype, stored: torch.dtype
) -> None:
    values = torch.randn(50, 64).to(stored)
    weight = HalfWeight(values, dtype)
    x = torch.randn(rows, 64).to(dtype).requires_grad_()
    g = torch.randn(rows, 50)
    found = ops.linear(x, weight)  # type: ignore[arg-type]
    assert_near(found, x.float() @ values.float().T, dtype)
    assert_near(torch.autograd.grad(found, x, g.to(dtype))[0], g @ values.float(), dtype)
