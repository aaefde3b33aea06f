"""The search for garbage is paused, and goes on afterwards."""

from __future__ import annotations

import gc

import pytest

from trifold.garbage import no_collections


def test_the_garbage_collector_is_as_before_after_it_was_paused():
    states = []

    @no_collections()
    def fail():
        states.append(gc.isenabled())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert states == [False] and gc.isenabled()
    with no_collections():
        with no_collections():
            pass
        assert not gc.isenabled()
