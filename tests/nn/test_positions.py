from __future__ import annotations

import math

import torch
from hypothesis import given, strategies as st

from trifold.nn.positions import sinusoids


@given(st.integers(0, 299), st.integers(0, 31))
def test_sinusoids_follow_the_formula(position: int, i: int) -> None:
    width = 64
    table = sinusoids(torch.arange(300), width)
    angle = position / 10_000 ** (2 * i / width)
    assert abs(table[position, 2 * i] - math.sin(angle)) < 1e-6
    assert abs(table[position, 2 * i + 1] - math.cos(angle)) < 1e-6


@given(st.integers(0, 40))
def test_a_shift_of_positions_is_a_linear_map(k: int) -> None:
    """PE(p + k) = PE(p) R_k: each pair (sin, cos) rotates by k times its rate, independent of p."""
    width = 16
    table = sinusoids(torch.arange(100), width).double()
    rotation = torch.zeros(width, width, dtype=torch.float64)
    for i in range(width // 2):
        angle = k / 10_000 ** (2 * i / width)
        cos, sin = math.cos(angle), math.sin(angle)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, -sin], [sin, cos]])
    torch.testing.assert_close(table[:60] @ rotation, table[k : k + 60], rtol=0, atol=1e-5)


def test_sinusoids_of_tensor2tensor_end_with_a_frequency_of_one_ten_thousandth() -> None:
    table = sinusoids(torch.arange(300), 12, "sinusoidal-tensor2tensor").double()
    for i in range(6):
        angles = torch.arange(300) / 10_000 ** (i / 5)
        torch.testing.assert_close(table[:, i], angles.double().sin(), rtol=0, atol=2e-5)
        torch.testing.assert_close(table[:, i + 6], angles.double().cos(), rtol=0, atol=2e-5)


def test_halves_are_a_permutation_of_interleaved_waves() -> None:
    places = torch.arange(50)
    interleaved, halves = sinusoids(places, 12), sinusoids(places, 12, "sinusoidal-halves")
    assert torch.equal(torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], dim=1), halves)
