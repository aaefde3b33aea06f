from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.nn.cache import Cache, GrowingKeys, SlidingKeys, StaticKeys


def random_chunk(tokens: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, tokens, 4), torch.randn(rows, 3, tokens, 4)


def test_static_keys_keep_their_memory_and_report_overflow() -> None:
    keys, plain = StaticKeys(5), GrowingKeys()
    for chunk in (random_chunk(2), random_chunk(1), random_chunk(2)):
        for got, expected in zip(keys.update(*chunk), plain.update(*chunk), strict=True):
            assert torch.equal(got, expected)
        address = keys.buffers[0].data_ptr()
        assert keys.buffers[0].shape[2] == 5
    assert keys.buffers[0].data_ptr() == address
    with pytest.raises(ValueError, match="6 tokens exceed the capacity of a static cache"):
        keys.update(*random_chunk(1))


@given(
    st.integers(1, 20),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=6),
)
def test_sliding_keys_are_a_suffix_of_all_keys_with_bounded_memory(
    window: int, rollback: int, steps: list[tuple[int, int]]
) -> None:
    sliding, plain = SlidingKeys(window, rollback), GrowingKeys()
    for tokens, removed in steps:
        chunk = random_chunk(tokens)
        full, held = plain.update(*chunk), sliding.update(*chunk)
        assert sliding.length == plain.length
        limit = (window - 1 + rollback) * 9 // 8
        for whole, part in zip(full, held, strict=True):
            assert torch.equal(part, whole[:, :, whole.shape[2] - part.shape[2] :])
            assert part.shape[2] >= min(whole.shape[2], window - 1 + tokens)
            assert part.shape[2] <= limit + tokens
        assert sliding.buffers[0].shape[2] <= limit + 1 or sliding.evicted == 0
        length = max(0, plain.length - min(removed, rollback, tokens))
        plain.truncate(length)
        sliding.truncate(length)


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.booleans(), min_size=24, max_size=24), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
)
def test_sliding_keys_count_real_tokens_only(
    window: int, attend: list[list[bool]], steps: list[int]
) -> None:
    """Wherever padding is, the last `window - 1` real keys before a token are held when it arrives."""
    cache, plain = Cache([SlidingKeys(window)]), GrowingKeys()
    real, start = torch.tensor(attend), 0
    for tokens in steps:
        end = min(start + tokens, 24)
        if end == start:
            break
        chunk = random_chunk(end - start, rows=len(attend))
        cache.note_padding(real[:, :end])
        whole, part = plain.update(*chunk)[0], cache.layers[0].past.update(*chunk)[0]
        first = whole.shape[2] - part.shape[2]
        assert torch.equal(part, whole[:, :, first:])
        for row in attend:
            real_columns = [column for column in range(start) if row[column]]
            assert window == 1 or not real_columns or first <= real_columns[1 - window :][0]
        start = end


def test_reordered_static_keys_keep_their_memory() -> None:
    keys, plain = StaticKeys(9), GrowingKeys()
    addresses = set()
    for step in range(8):
        rows = torch.tensor([1, 1, 0]) if step % 2 else torch.tensor([2, 0, 1])
        chunk = random_chunk(1, rows=3)
        for got, expected in zip(keys.update(*chunk), plain.update(*chunk), strict=True):
            assert torch.equal(got, expected)
        keys.select(rows)
        plain.select(rows)
        addresses.add(keys.buffers[0].data_ptr())
    assert len(addresses) == 1


def test_an_identity_reordering_copies_nothing() -> None:
    cache = Cache([StaticKeys(4)])
    cache.layers[0].past.update(*random_chunk(2))
    before = cache.layers[0].past.buffers[0].data_ptr()
    cache.reorder(torch.tensor([0, 1]))
    assert cache.layers[0].past.buffers[0].data_ptr() == before
    before = cache.layers[0].past.buffers[0].clone()
    cache.reorder(torch.tensor([1, 1]))
    assert torch.equal(cache.layers[0].past.buffers[0], before[[1, 1]])


def test_sliding_keys_reject_a_truncation_beyond_their_rollback() -> None:
    sliding = SlidingKeys(3, rollback=1)
    sliding.update(*random_chunk(8))
    with pytest.raises(
        ValueError, match=r"cannot remove 2 tokens from a sliding cache .* rollback=1"
    ):
        sliding.truncate(6)
    sliding.truncate(7)
    assert sliding.length == 7


@pytest.mark.parametrize(
    "keys", [GrowingKeys(), StaticKeys(6), SlidingKeys(3)], ids=lambda k: type(k).__name__
)
def test_rows_are_selected_then_repeated(keys: GrowingKeys) -> None:
    first, second = random_chunk(4), random_chunk(1, rows=4)
    keys.update(*first)
    keys.select(torch.tensor([1, 0]))
    keys.expand(2)
    got, _ = keys.update(*second)
    expected = torch.cat([first[0][[1, 1, 0, 0]], second[0]], dim=2)
    assert torch.equal(got, expected[:, :, -got.shape[2] :])


def test_an_empty_cache_can_be_expanded() -> None:
    keys = GrowingKeys()
    keys.expand(3)
    keys.select(torch.tensor([0]))
    assert keys.length == 0
