from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.nn.masks import Mask, padding_mask
from trifold.nn.variants.windows import Window


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_boolean_is_rejected(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"boolean \(True = may attend\)"):
        Mask(torch.ones(2, 3, dtype=dtype))


def test_padding_mask_is_true_at_real_positions() -> None:
    assert padding_mask(torch.tensor([1, 3]), 3).tolist() == [
        [True, False, False],
        [True, True, True],
    ]
    assert padding_mask(torch.tensor([3, 3]), 3) is None


def test_causal_and_padding_combine() -> None:
    mask = Mask(torch.tensor([[True, False, True]]), causal=True)
    dense = mask.dense(3, 3, torch.device("cpu"))
    assert dense[0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, True]]
    offsets = mask.additive(3, 3, torch.zeros(1))
    assert torch.equal(offsets == 0, dense)
    assert torch.equal(offsets == float("-inf"), ~dense)


def test_a_cached_query_attends_to_all_earlier_keys() -> None:
    dense = Mask(causal=True, offset=2).dense(2, 4, torch.device("cpu"))
    assert dense[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
    st.booleans(),
    st.none() | st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_a_window_counts_real_keys_only(
    queries: int, offset: int, window: int, causal: bool, real: list[bool] | None
) -> None:
    offset = offset if causal else 0
    width = offset + queries
    keys = None if real is None else torch.tensor([real[:width]])
    mask = Mask(keys, causal=causal, offset=offset, rules=(Window(window),))
    dense = mask.dense(queries, width, torch.device("cpu"))
    for t in range(queries):
        for j in range(width):
            i = offset + t
            is_real = real is None or real[j]
            allowed = is_real and (j <= i or not causal)
            if real is None or real[i]:  # queries at padding are undefined
                low, high = sorted((i, j))
                between = high - low if real is None else sum(real[low + 1 : high + 1])
                allowed = allowed and between < window
                assert allowed == (
                    dense is None or bool(dense.expand(1, 1, queries, width)[0, 0, t, j])
                )


def test_a_mask_for_fewer_keys_covers_the_last_ones() -> None:
    keys = torch.tensor([[True, True, False, True, True]])
    mask = Mask(keys, causal=True, offset=3, rules=(Window(2),))
    whole = mask.dense(2, 5, torch.device("cpu"))
    assert torch.equal(mask.dense(2, 4, torch.device("cpu")), whole[..., 1:])
    bias = torch.randn(1, 3, 2, 5)
    offsets = mask.additive(2, 4, bias, bias)
    assert torch.equal(offsets, bias[..., 1:].masked_fill(~whole[..., 1:], float("-inf")))
    assert mask.additive(2, 4, bias, bias) is offsets
