"""Raw text fills its batches, and every token of it is in exactly one of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.batches import Laid, deal, lay, pack_epoch
from trifold.errors import DataError

LENGTHS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 90)), min_size=1, max_size=60)
SIZES = st.tuples(st.integers(1, 40), st.integers(0, 80)).map(lambda sizes: (sizes[0], sum(sizes)))


def tokens_of(laid: Laid, batches: Any = None) -> Counter[tuple[int, int]]:
    """How often each token (document, place) is in the batches."""
    found: Counter[tuple[int, int]] = Counter()
    for batch in laid.plan if batches is None else batches:
        for piece in batch.tolist():
            first, length = int(laid.firsts[piece]), int(laid.lengths[piece])
            found.update((int(laid.documents[piece]), place) for place in range(first, first + length))
    return found


@given(
    lengths=LENGTHS, sizes=SIZES, cut=st.sampled_from(["pieces", "windows", "drop"]), seed=st.integers(0, 5)
)
def test_every_token_exactly_once_and_never_more_than_asked(
    lengths: list[int], sizes: tuple[int, int], cut: Any, seed: int
) -> None:
    width, tokens = sizes
    kept = [length if cut != "drop" or length <= width else 0 for length in lengths]
    if not sum(kept):
        with pytest.raises(DataError, match="no token is left"):
            lay(np.array(lengths), width=width, tokens=tokens, seed=seed, epoch=0, cut=cut)
        return
    laid = lay(np.array(lengths), width=width, tokens=tokens, seed=seed, epoch=0, cut=cut)
    expected = {(document, place) for document, length in enumerate(kept) for place in range(length)}
    found = tokens_of(laid)
    assert set(found) == expected
    assert set(found.values()) == {1}
    assert laid.lengths.min() >= 1
    assert laid.lengths.max() <= width
    filled = [int(laid.lengths[batch].sum()) for batch in laid.plan]
    assert max(filled) <= tokens
    if cut != "drop":
        assert sorted(filled)[1:] == [size for size in sorted(filled)[1:] if size >= tokens - tokens // 128]
    assert sorted(laid.dropped) == [n for n, length in enumerate(lengths) if cut == "drop" and length > width]


@given(lengths=LENGTHS, sizes=SIZES, seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_the_same_question_has_the_same_answer(
    lengths: list[int], sizes: tuple[int, int], seed: int, epoch: int
) -> None:
    asked = {"width": sizes[0], "tokens": sizes[1], "seed": seed, "epoch": epoch}
    if not sum(lengths):
        return
    one, two = (lay(np.array(lengths, kind), **asked) for kind in (np.int64, np.int32))
    assert [batch.tolist() for batch in one.plan] == [batch.tolist() for batch in two.plan]
    for name in ("documents", "firsts", "lengths"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


def corpora() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "sentences": rng.poisson(25, 40_000) + 1,
        "articles": np.exp(rng.normal(5.5, 1.2, 3_000)).astype(np.int64) + 1,
        "as long as a batch": rng.integers(400, 1024, 2_000),
        "a book": np.array([1_000_000]),
        "books and notes": np.concatenate((rng.integers(50_000, 90_000, 9), rng.integers(1, 30, 300))),
    }


@pytest.mark.parametrize("name", list(corpora()))
@pytest.mark.parametrize("cut", ["pieces", "windows"])
@pytest.mark.parametrize(("width", "tokens"), [(64, 768), (1024, 1024), (1024, 16_384)])
def test_real_corpora_fill_99_percent(name: str, cut: Any, width: int, tokens: int) -> None:
    lengths = corpora()[name]
    laid = lay(lengths, width=width, tokens=tokens, seed=1, epoch=0, cut=cut)
    assert laid.lengths.sum() == lengths.sum()
    whole = [int(laid.lengths[batch].sum()) for batch in laid.plan]
    assert sum(sorted(whole)[1:]) >= 0.99 * tokens * (len(whole) - 1)  # but for what is left at the end
    if len(whole) > 100:
        assert laid.real_share >= 0.99


def test_whole_documents_stay_whole_where_they_fit() -> None:
    """Of 40,000 sentences only some hundred are cut, one a batch at most."""
    lengths = corpora()["sentences"]
    laid = lay(lengths, width=1024, tokens=4096, seed=1, epoch=0)
    cut = np.count_nonzero(np.bincount(laid.documents) > 1)
    assert cut <= len(laid.plan)
    assert cut < 0.01 * len(lengths)
    assert lay(lengths, width=1024, tokens=4096, seed=1, epoch=0, cut="drop").real_share > 0.99


def test_epochs_and_seeds_mix_differently() -> None:
    """Which rows meet in a batch is chance: hardly two that met in one epoch meet in the next."""
    lengths = corpora()["sentences"][:4000]

    def meetings(seed: int, epoch: int) -> set[frozenset[int]]:
        laid = lay(lengths, width=128, tokens=128, seed=seed, epoch=epoch)
        rows = [laid.documents[batch].tolist() for batch in laid.plan]
        return {frozenset((a, b)) for batch in rows for a in batch for b in batch if a < b}

    first = meetings(1, 0)
    for other in (meetings(1, 1), meetings(2, 0)):
        assert len(first & other) < 0.02 * len(first)


def test_windows_fall_at_other_places_each_epoch() -> None:
    cuts = [
        set(
            lay(np.array([10_000]), width=100, tokens=100, seed=1, epoch=epoch, cut="windows").firsts.tolist()
        )
        for epoch in range(4)
    ]
    assert len({frozenset(places) for places in cuts}) == 4
    pieces = lay(np.array([10_000]), width=100, tokens=100, seed=1, epoch=0)
    assert sorted(pieces.firsts) == list(range(0, 10_000, 100))


def test_without_shuffling_the_order_is_that_of_the_text() -> None:
    laid = lay(np.full(50, 16), width=16, tokens=64, seed=1, epoch=0, shuffle=False)
    assert sorted(np.concatenate(laid.plan)) == list(range(50))
    again = lay(np.full(50, 16), width=16, tokens=64, seed=9, epoch=7, shuffle=False)
    assert [batch.tolist() for batch in laid.plan] == [batch.tolist() for batch in again.plan]


@given(
    lengths=LENGTHS,
    worlds=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    done=st.integers(0, 12),
)
def test_ranks_lose_and_double_nothing_over_a_resume_with_other_ranks(
    lengths: list[int], worlds: tuple[int, int], done: int
) -> None:
    """Some steps under one number of ranks, the rest under another: together every token once."""
    if not sum(lengths):
        return
    laid = lay(np.array(lengths), width=8, tokens=16, seed=1, epoch=0)
    before, after = worlds
    done = min(done, len(laid.plan) // before)
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(before):
        found += tokens_of(laid, deal(laid.plan, rank, before)[:done])
    for rank in range(after):
        found += tokens_of(laid, deal(laid.plan[done * before :], rank, after))
    assert found == tokens_of(laid)


@given(lengths=LENGTHS, spare=st.integers(0, 30), seed=st.integers(0, 3))
def test_whole_rows_are_packed_whole(lengths: list[int], spare: int, seed: int) -> None:
    tokens = max(1, *lengths) + spare if len(lengths) > 1 else max(1, lengths[0]) + spare
    plan = pack_epoch(np.array(lengths), tokens, seed=seed, epoch=0)
    rows = [row for batch in plan for row in batch.tolist()]
    assert sorted(rows) == [row for row, length in enumerate(lengths) if length]
    assert all(sum(lengths[row] for row in batch) <= tokens for batch in plan)


def test_best_fit_fills_batches_without_cutting() -> None:
    lengths = corpora()["articles"].clip(max=1024)
    plan = pack_epoch(lengths, 8192, seed=1, epoch=0)
    assert lengths.sum() / (8192 * len(plan)) > 0.99


def test_what_cannot_be_packed() -> None:
    with pytest.raises(DataError, match="row 1: 9 tokens, more than a batch of 8 holds"):
        pack_epoch(np.array([1, 9]), 8, seed=1, epoch=0)
    with pytest.raises(ValueError, match="pieces of up to 9 tokens in batches of 8"):
        lay(np.array([1]), width=9, tokens=8, seed=1, epoch=0)
    assert len(pack_epoch(np.array([0, 0]), 8, seed=1, epoch=0)) == 0
