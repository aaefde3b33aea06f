"""A decoder with a cache computes what it computes without, however the text is divided."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tests.laws.configs import breaks, cases
from tests.laws.models import assert_close, decode_parts, limit_of, memory_of, model_in, texts_of

from trifold.nn import Inputs

LENGTH, ROWS = 13, 3
DIVISIONS = ("token by token", "chunks", "a prompt, then tokens")


def division(kind: str, seed: str) -> list[int]:
    """Where the parts of a text end."""
    if kind == "chunks":
        return [*sorted(Random(seed).sample(range(1, LENGTH), 3)), LENGTH]
    return [*range(1 if kind == "token by token" else Random(seed).randint(4, 8), LENGTH + 1)]


@torch.no_grad()
@pytest.mark.parametrize("parts", DIVISIONS)
@cases("any cache", shapes=("encoder-decoder", "decoder"))
def test_cached_steps_equal_an_uncached_pass(name: str, parts: str, operations: str) -> None:
    """Rows of equal length, and in chunks also rows that are padded on either side; each kind of
    cache."""
    model = model_in(operations, name)
    tokens, memory = texts_of(model.config, ROWS, LENGTH), memory_of(model, ROWS)
    kind = {"token by token": "sliding", "chunks": "growing"}.get(parts, "static")
    attend = None
    if parts == "chunks":
        attend = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        attend[1, :3] = attend[2, 4:7] = False
    whole, ends = model.decode(Inputs(tokens, attend), memory), division(parts, name)
    cache = model.new_cache(kind, capacity=LENGTH)  # type: ignore[arg-type]
    got = decode_parts(model, tokens, ends, memory, cache, attend)
    real = torch.ones(ROWS, LENGTH, dtype=torch.bool) if attend is None else attend.clone()
    if breaks("cache", name):
        real[:, : ends[-2]] = False
    assert_close(got[real], whole[real], limit_of(operations))
    assert cache.length == LENGTH
