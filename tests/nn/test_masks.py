from __future__ import annotations

import pytest
import torch

from trifold.nn.masks import Mask, padding


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_numbers_with_two_meanings_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"boolean \(True = may attend\)"):
        Mask(torch.ones(2, 3, dtype=dtype))


def test_padding_is_true_at_real_positions() -> None:
    assert padding(torch.tensor([1, 3]), 3).tolist() == [[True, False, False], [True, True, True]]
    assert padding(torch.tensor([3, 3]), 3) is None


def test_causal_and_padding_together() -> None:
    mask = Mask(torch.tensor([[True, False, True]]), causal=True)
    dense = mask.dense(3, 3, torch.device("cpu"))
    assert dense[0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, True]]
    offsets = mask.additive(3, 3, torch.zeros(1))
    assert torch.equal(offsets == 0, dense)
    assert torch.equal(offsets == float("-inf"), ~dense)


def test_a_cached_query_sees_all_before_it() -> None:
    dense = Mask(causal=True, offset=2).dense(2, 4, torch.device("cpu"))
    assert dense[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]


def test_selecting_rows() -> None:
    mask = Mask(torch.tensor([[True, False], [True, True]]), causal=True)
    assert mask.select(torch.tensor([1])).keys.tolist() == [[True, True]]
    assert Mask().select(torch.tensor([0])).is_empty
