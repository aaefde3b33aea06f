from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.nn.cache import Cache, GrowingKeys, SlidingKeys, StaticKeys


def new(tokens: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, tokens, 4), torch.randn(rows, 3, tokens, 4)


def test_static_keys_never_move_and_say_when_they_are_full() -> None:
    keys, plain = StaticKeys(5), GrowingKeys()
    for chunk in (new(2), new(1), new(2)):
        for got, expected in zip(keys.update(*chunk), plain.update(*chunk), strict=True):
            assert torch.equal(got, expected)
        lies_at = keys.buffers[0].data_ptr()
        assert keys.buffers[0].shape[2] == 5
    assert keys.buffers[0].data_ptr() == lies_at
    with pytest.raises(ValueError, match="6 tokens exceed the capacity of a static cache"):
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
        most = (window - 1 + rollback) * 9 // 8
        for whole, part in zip(every, held, strict=True):
            assert torch.equal(part, whole[:, :, whole.shape[2] - part.shape[2] :])
            assert part.shape[2] >= min(whole.shape[2], window - 1 + tokens)
            assert part.shape[2] <= most + tokens
        assert sliding.buffers[0].shape[2] <= most + 1 or sliding.evicted == 0
        length = max(0, plain.length - min(back, rollback, tokens))
        plain.truncate(length)
        sliding.truncate(length)


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.booleans(), min_size=24, max_size=24), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
)
def test_padding_takes_room_but_is_not_counted(
    window: int, attend: list[list[bool]], steps: list[int]
) -> None:
    """Wherever it stands, the last `window - 1` real keys before any token are there when it comes."""
    cache, plain = Cache([SlidingKeys(window)]), GrowingKeys()
    real, start = torch.tensor(attend), 0
    for tokens in steps:
        end = min(start + tokens, 24)
        if end == start:
            break
        chunk = new(end - start, rows=len(attend))
        cache.note_padding(real[:, :end])
        whole, part = plain.update(*chunk)[0], cache.layers[0].own.update(*chunk)[0]
        first = whole.shape[2] - part.shape[2]
        assert torch.equal(part, whole[:, :, first:])
        for row in attend:
            seen = [column for column in range(start) if row[column]]
            assert window == 1 or not seen or first <= seen[1 - window :][0]
        start = end


def test_beams_take_turns_in_two_rooms() -> None:
    keys, plain = StaticKeys(9), GrowingKeys()
    places = set()
    for step in range(8):
        rows = torch.tensor([1, 1, 0]) if step % 2 else torch.tensor([2, 0, 1])
        chunk = new(1, rows=3)
        for got, expected in zip(keys.update(*chunk), plain.update(*chunk), strict=True):
            assert torch.equal(got, expected)
        keys.reorder(rows)
        plain.select(rows)
        places.add(keys.buffers[0].data_ptr())
    assert len(places) == 2


def test_a_cache_whose_rows_stay_as_they_are_is_left_alone() -> None:
    cache = Cache([StaticKeys(4)])
    cache.layers[0].own.update(*new(2))
    before = cache.layers[0].own.buffers[0].data_ptr()
    cache.reorder(torch.tensor([0, 1]))
    assert cache.layers[0].own.buffers[0].data_ptr() == before
    cache.reorder(torch.tensor([1, 1]))
    assert cache.layers[0].own.buffers[0].data_ptr() != before


def test_sliding_keys_refuse_to_give_back_what_is_gone() -> None:
    sliding = SlidingKeys(3, rollback=1)
    sliding.update(*new(8))
    with pytest.raises(ValueError, match=r"cannot remove 2 tokens from a sliding cache .* rollback=1"):
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


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=6), st.integers(1, 3))
def test_a_lineage_is_where_the_keys_would_have_been_moved(moves: list[list[int]], prompt: int) -> None:
    moved, followed = Cache(2), Cache(2)
    followed.uses_beam_index = True
    generator = torch.Generator().manual_seed(0)
    for step, parents in enumerate([None, *moves]):
        for cache in (moved, followed):
            if parents is not None:
                cache.reorder(torch.tensor(parents))
        new = torch.randn(2, 2, 4, 3, prompt if step == 0 else 1, 5, generator=generator)
        for layer, (keys, values) in enumerate(new):
            for cache in (moved, followed):
                cache.layers[layer].own.update(keys, values)
        beam_index = followed.current_beam_index()
        assert beam_index is None or beam_index.shape[1] > followed.length
    followed.gather_beams()
    assert followed.beam_index is None
    for ours, theirs in zip(followed.layers, moved.layers, strict=True):
        assert ours.own.buffers is not None and theirs.own.buffers is not None
        for one, other in zip(ours.own.buffers, theirs.own.buffers, strict=True):
            assert torch.equal(one[:, :, : moved.length], other[:, :, : moved.length])


def test_rows_that_leave_take_along_what_they_have_read() -> None:
    cache = Cache(1)
    cache.uses_beam_index = True
    keys = torch.randn(4, 2, 3, 5)
    cache.layers[0].own.update(keys, keys)
    cache.reorder(torch.tensor([1, 1, 3, 2]))
    cache.select(torch.tensor([0, 2]), torch.tensor([0]))
    held = cache.layers[0].own.buffers
    assert held is not None and torch.equal(held[0][:, :, :3], keys[[1, 3]])
