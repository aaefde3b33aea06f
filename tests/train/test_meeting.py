"""Ranks that find each other: all or none of them, and never those of an earlier start."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from trifold.errors import OtherRankError
from trifold.train import distributed


def meeting(store: HashStore, delays: list[float]) -> list[str]:
    """The name that each rank finds, which comes so many seconds late."""

    def come(rank: int) -> str:
        time.sleep(delays[rank])
        return distributed._meet(store, rank, len(delays))

    with ThreadPoolExecutor(len(delays)) as threads:
        return list(threads.map(come, range(len(delays))))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_that_are_started_again_meet_anew_whoever_comes_late(late: int) -> None:
    store = HashStore()  # outlives them, with all that they left in it
    names = []
    for _ in range(3):
        found = set(meeting(store, [0.1 if rank == late else 0.0 for rank in range(3)]))
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3


def test_a_rank_that_is_left_alone_gives_up(monkeypatch: Any) -> None:
    store = HashStore()
    meeting(store, [0.0, 0.0])
    monkeypatch.setattr(distributed, "TIMEOUT", timedelta(seconds=0.2))
    for rank in (0, 1):
        with pytest.raises(OtherRankError, match=f"rank {rank}: not all of 2 ranks joined"):
            distributed._meet(store, rank, 2)
