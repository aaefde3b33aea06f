"""Attention of one query a row in compiled loops is attention."""

from __future__ import annotations

import pytest
import torch

from trifold.fast import single_query as query
from trifold.nn import Mask, ops

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("rows", "sentences", "groups"), [(6, 6, 1), (6, 2, 1), (6, 6, 2)])
def test_one_query_a_row_is_attended_to_as_any_other(
    dtype: torch.dtype,
    window: int | None,
    rows: int,
    sentences: int,
    groups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, keys = torch.randn(rows, 4, 1, 8).to(dtype), 9
    k, v = (torch.randn(sentences, 12, 4 // groups, 8).to(dtype).transpose(1, 2)[:, :, :keys] for _ in "kv")
    real = None if window else torch.rand(sentences, keys) < 0.7
    mask = Mask(real, causal=sentences == rows, offset=keys - 1, window=window)
    bias = torch.randn(1, 4, 1, keys)
    with torch.no_grad():
        monkeypatch.setattr(query, "WORTH", 0)
        assert query.asks_once(q, k, mask)
        ours = query.attend_once(q, k, v, mask, bias, 3.0)
    wide = [y.double().repeat_interleave(n, d) for y, n, d in ((k, groups, 1), (v, groups, 1))]
    wide = [y.repeat_interleave(rows // sentences, 0) for y in wide]
    seen = real if real is None else real.repeat_interleave(rows // sentences, 0)
    twin = Mask(seen, causal=mask.causal, offset=keys - 1, window=window)
    theirs = ops.PLAIN["attend"](q.double(), *wide, twin, bias=bias.double(), soft_cap=3.0)
    assert ours.shape == (rows, 1, 32) and ours.dtype is dtype
    limit = 1e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(ours.double(), theirs.transpose(1, 2).flatten(2), atol=limit)
