from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.nn import Mask, ModelConfig
from trifold.nn.relative import AlibiOffsets, RelativeOffsets, buckets, slopes

CPU = torch.device("cpu")


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (8, 20), (16, 64)])
def test_buckets_are_the_reference_librarys(both_ways: bool, count: int, farthest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distances, both_ways, count, farthest)
    assert torch.equal(buckets(distances, count, farthest, both_ways=both_ways), expected)


@given(st.integers(0, 500), st.integers(0, 500), st.booleans())
def test_buckets_grow_with_the_distance_and_near_ones_are_their_own(a: int, b: int, both: bool) -> None:
    near, far = sorted((a, b))
    first, second = buckets(torch.tensor([-near, -far]), 32, 128, both_ways=both).tolist()
    assert first <= second < 32
    exact = 8 if both else 16
    assert first == near or near >= exact


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 71])
def test_slopes_are_the_reference_librarys(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    alibi = build_alibi_tensor(torch.ones(1, 3, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(slopes(heads), alibi[:, 0, 1], rtol=1e-6, atol=0)


def test_slopes_of_the_paper() -> None:
    torch.testing.assert_close(slopes(8), torch.tensor([2.0**-h for h in range(1, 9)]))
    assert slopes(16)[0] == pytest.approx(1 / math.sqrt(2))


def decoder(**values: object) -> ModelConfig:
    return ModelConfig.parse({"shape": "decoder", "d_model": 12, "n_heads": 3} | values)


@pytest.mark.parametrize("rounded", [False, True])
def test_alibi_is_slope_times_distance_but_for_what_a_row_has_in_common(rounded: bool) -> None:
    config = decoder(positions="alibi", alibi_rounded=rounded, alibi_scale=0.5)
    keys = torch.tensor([[False, True, True, True, True], [True, True, False, True, True]])
    offsets = AlibiOffsets(config)(Mask(keys, causal=True, offset=2), 3, CPU, None)
    m = slopes(3).bfloat16().float() if rounded else slopes(3)
    for row, real in enumerate(keys):
        seen = [j for j in range(5) if real[j]]
        for head in range(3):
            line = offsets[row, head, 0, seen]
            expected = torch.tensor([0.5 * float(m[head]) * n for n in range(len(seen))])
            torch.testing.assert_close(line - line[0], expected, rtol=1e-2 if rounded else 1e-5, atol=1e-6)


def test_rounded_alibi_is_the_reference_librarys() -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    keys = torch.arange(600)[None] >= 0
    offsets = AlibiOffsets(decoder(positions="alibi", alibi_rounded=True))(Mask(causal=True), 600, CPU, None)
    assert torch.equal(offsets[0, :, 0], build_alibi_tensor(keys, 3, torch.float32)[:, 0])


def test_alibi_both_ways() -> None:
    config = ModelConfig(shape="encoder", d_model=12, n_heads=3, positions="alibi")
    offsets = AlibiOffsets(config)(Mask(), 4, CPU, None)
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(offsets[0, :, i, j], -slopes(3) * abs(i - j))


def test_relative_offsets_are_looked_up_by_distance() -> None:
    config = decoder(positions="relative", relative_buckets=8, relative_distance=20)
    part = RelativeOffsets(config)
    torch.nn.init.normal_(part.weight)
    keys = torch.tensor([[False, True, True, True, True]])
    offsets = part(Mask(keys, causal=True, offset=3), 2, CPU, None)
    assert offsets.shape == (1, 3, 2, 5)
    for t, column in ((0, 3), (1, 4)):
        for j in range(1, column + 1):
            assert torch.equal(offsets[0, :, t, j], part.weight[column - j])
