from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trifold.nn.cache import GrowingKeys, SlidingKeys, StaticKeys


def new(tokens: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, tokens, 4), torch.randn(rows, 3, tokens, 4)


def test_static_keys_never_move_and_say_when_they_are_full() -> None:
    keys, plain = StaticKeys(5), GrowingKeys()
    for chunk in (new(2), new(1), new(2)):
        for got, expected in zip(keys.update(*chunk), plain.update(*chunk), strict=True):
            assert torch.equal(got, expected)
        lies_at = keys._keys.data_ptr()
    assert keys._keys.data_ptr() == lies_at
    with pytest.raises(ValueError, match="6 tokens do not fit a static cache of 5: make it larger"):
        keys.update(*new(1))


@given(
    st.integers(1, 5),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=6),
)
def test_sliding_keys_are_the_last_of_all_keys(
    window: int, rollback: int, steps: list[tuple[int, int]]
) -> None:
    """Read some, take some back, again and again: what a window reaches is there, and not much more."""
    sliding, plain = SlidingKeys(window, rollback), GrowingKeys()
    for tokens, back in steps:
        chunk = new(tokens)
        every, held = plain.update(*chunk), sliding.update(*chunk)
        assert sliding.length == plain.length
        for whole, part in zip(every, held, strict=True):
            assert torch.equal(part, whole[:, :, whole.shape[2] - part.shape[2] :])
            assert part.shape[2] >= min(whole.shape[2], window - 1 + tokens)
            assert part.shape[2] <= window - 1 + rollback + tokens
        length = max(0, plain.length - min(back, rollback, tokens))
        plain.truncate(length)
        sliding.truncate(length)


def test_sliding_keys_refuse_to_give_back_what_is_gone() -> None:
    sliding = SlidingKeys(3, rollback=1)
    sliding.update(*new(8))
    with pytest.raises(ValueError, match="2 tokens cannot be taken back: this cache was made for 1"):
        sliding.truncate(6)
    sliding.truncate(7)
    assert sliding.length == 7


@pytest.mark.parametrize(
    "keys", [GrowingKeys(), StaticKeys(6), SlidingKeys(3)], ids=lambda k: type(k).__name__
)
def test_rows_are_chosen_and_multiplied(keys: GrowingKeys) -> None:
    first, second = new(4), new(1, rows=4)
    keys.update(*first)
    keys.select(torch.tensor([1, 0]))
    keys.expand(2)
    got, _ = keys.update(*second)
    expected = torch.cat([first[0][[1, 1, 0, 0]], second[0]], dim=2)
    assert torch.equal(got, expected[:, :, -got.shape[2] :])


def test_an_empty_cache_can_be_multiplied() -> None:
    keys = GrowingKeys()
    keys.expand(3)
    keys.select(torch.tensor([0]))
    assert keys.length == 0
