"""Bytes times bytes is the product of what was rounded."""

from __future__ import annotations

import pytest
import torch

from trifold.fast import instruction as line
from trifold.fast import int8_matmul as bytes_product
from trifold.fast import thread_pool as crew
from trifold.fast.int8 import Int8

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")


@pytest.mark.usefixtures("small_products_too")
@pytest.mark.parametrize("biased", [True, False])
def test_bytes_times_bytes_is_the_product_of_what_was_rounded(
    biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytes_product, "WORTH", 0)
    x, bias = torch.randn(33, 1, 64).bfloat16(), torch.randn(96).bfloat16() if biased else None
    x[5] = 0
    weight = Int8.of(torch.randn(96, 64))
    with torch.no_grad():
        assert bytes_product.many(x, weight)
        ours = bytes_product.bytes_product(x, weight, bias)
    rounded = Int8.of(x[:, 0].float())
    small, scales = torch.empty(33, 64, dtype=torch.int8), torch.empty(33)
    about = {"kind": line.BRAIN, "rows": 33, "units": 33, "inputs": 64}
    crew.run_line(op=line.TO_BYTES, **about, x=x, out=small, scales=scales)
    assert torch.allclose(scales, rounded.scales)
    apart = (small.int() - rounded.values.int()).abs()
    assert int(apart.max()) <= 1 and float(apart.float().mean()) < 0.05  # a tie may go to either side
    exact = (small.double() * scales.double()[:, None]) @ weight.wide().double().T
    exact = exact if bias is None else exact + bias.double()
    assert ours.shape == (33, 1, 96) and ours.dtype is torch.bfloat16
    assert torch.allclose(ours[:, 0].double(), exact, rtol=2**-8, atol=1e-3)
    with torch.no_grad():
        assert torch.equal(
            ours[7:29], bytes_product.bytes_product(x[7:29], weight, bias)
        )  # rows are on their own


def test_only_many_rows_in_bf16_are_rounded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_product, "WORTH", 0)
    weight, x = Int8.of(torch.randn(96, 64)), torch.randn(33, 1, 64).bfloat16()
    assert not bytes_product.many(x, weight)  # gradients
    with torch.no_grad():
        assert bytes_product.many(x, weight)
        assert not bytes_product.many(x.float(), weight)
        assert not bytes_product.many(x[: crew.FEW], weight)
        assert bytes_product.many(x.view(3, 11, 64), weight)
