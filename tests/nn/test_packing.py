from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from trifold.nn.packing import Packing

lengths = st.lists(st.integers(1, 70), min_size=1, max_size=9)


@given(lengths, st.booleans())
def test_flat_inverts_grid_with_zero_gradients_for_padding(
    rows: list[int], always_pad: bool
) -> None:
    packing = Packing.of(torch.tensor(rows), always_pad=always_pad)
    x = torch.arange(1.0, packing.length + 1)[None, :, None].requires_grad_()
    grid = packing.grid(x)
    token = 1.0
    for row, length in enumerate(rows):
        expected = torch.arange(token, token + length)
        assert torch.equal(grid[row, :length, 0], expected)
        token += length
    numbers = [number for number, length in enumerate(rows) for _ in range(length)]
    assert packing.rows().tolist() == [*numbers, *[-1] * (packing.length - packing.n_real)]
    assert torch.equal(packing.flat(grid)[0, : packing.n_real], x[0, : packing.n_real])
    packing.flat(grid)[0, : packing.n_real].sum().backward()
    assert torch.equal(x.grad[0, : packing.n_real], torch.ones(packing.n_real, 1))
    assert not x.grad[0, packing.n_real :].any()


@given(st.integers(1, 40), st.integers(1, 70))
def test_rows_of_equal_length_are_padded_to_a_multiple_of_64_only(rows: int, length: int) -> None:
    packing = Packing.of(torch.full((rows,), length), always_pad=False)
    assert packing.attend is None
    assert packing.length - packing.n_real < 64
    assert packing.n_real % 64 or packing.length == packing.n_real
    assert Packing.of(torch.full((rows,), length)).length > packing.n_real
