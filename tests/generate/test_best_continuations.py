from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.generate import beam_search


@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(30, 90),
    beams=st.integers(1, 4),
    dead=st.booleans(),
    count=st.integers(1, 8),
)
def test_chunked_top_k_equals_full_top_k(seed, vocabulary, beams, dead, count):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(3, beams, vocabulary, generator=generator)
    log_probs[:, :, 5:20] = float("-inf")
    scores = torch.randn(3, beams, generator=generator)
    if dead:
        scores[:, 1:] = float("-inf")
    whole = beam_search.best_continuations(log_probs, scores, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_search, "CHUNK", 3)
        patch.setattr(beam_search, "LARGE", 0)
        found = beam_search.best_continuations(log_probs, scores, count)
    for ours, expected in zip(found, whole, strict=True):
        assert torch.equal(ours, expected)
    rows = torch.arange(3)[:, None]
    assert torch.equal(log_probs[rows, found[1], found[2]] + scores.gather(1, found[1]), found[0])
