"""A cache whose rows were moved or cut is the cache of the moved or cut rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.laws.configs import CONFIGS, breaks, cases
from tests.laws.models import assert_close, decode_parts, limit_of, memory_of, model_in, texts_of
from torch import Tensor

from trifold.nn import Inputs, Memory

DECODERS = ("encoder-decoder", "decoder")
START, END = 7, 11


def kind_of(name: str) -> Any:
    """The kind of cache, in turn."""
    return ("growing", "static", "sliding")[list(CONFIGS).index(name) % 3]


def assert_continues(
    name: str, got: Tensor, read: Tensor, memory: Memory | None, operations: str
) -> None:
    """Whether the last states are those of a pass over all that was read."""
    whole, count = model_in(operations, name).decode(Inputs(read), memory), got.shape[1]
    last = slice(-1 if breaks("cache", name) else -count, None)
    assert_close(got[:, last], whole[:, last], limit_of(operations))


@torch.no_grad()
@cases("cache moves", shapes=DECODERS)
def test_expanded_reordered_and_selected_rows(name: str, operations: str) -> None:
    model = model_in(operations, name)
    memory, tokens = memory_of(model, 2), texts_of(model.config, 4, END)
    tokens[:, :START] = tokens[[0, 0, 2, 2], :START]
    cache = model.new_cache(kind_of(name), capacity=END)
    decode_parts(model, tokens[::2, :START], [START], memory, cache)
    cache.expand(2)
    got = decode_parts(model, tokens, [START + 1], memory, cache)
    beams = None if memory is None else memory.select(torch.tensor([0, 0, 1, 1]))
    assert_continues(name, got, tokens[:, : START + 1], beams, operations)
    parents = torch.tensor([1, 0, 3, 3])
    cache.reorder(parents)
    read = torch.cat([tokens[parents, : START + 1], tokens[:, START + 1 :]], 1)
    got = decode_parts(model, read, [START + 2], memory, cache)
    assert_continues(name, got, read[:, : START + 2], beams, operations)
    cache.select(torch.tensor([2, 3]), torch.tensor([1]))
    source = None if memory is None else memory.select(torch.tensor([1]))
    got = decode_parts(model, read[2:], [START + 3, END], source, cache)
    own = None if memory is None else memory.select(torch.tensor([1, 1]))
    assert_continues(name, got, read[2:], own, operations)


@torch.no_grad()
@cases("truncation", shapes=DECODERS)
def test_a_truncated_cache(name: str, operations: str) -> None:
    model = model_in(operations, name)
    memory, tokens = memory_of(model, 2), texts_of(model.config, 2, END)
    cache = model.new_cache(kind_of(name), capacity=END, rollback=3)
    decode_parts(model, tokens, [START, START + 1, START + 2], memory, cache)
    cache.truncate(START)
    read = torch.cat([tokens[:, :START], tokens[:, START:].flip(1)], 1)
    got = decode_parts(model, read, [START + 1, START + 2, END], memory, cache)
    assert_continues(name, got, read, memory, operations)


@torch.no_grad()
@cases("truncation error", parts=["elu", "lsh"], shapes=DECODERS)
def test_a_cache_that_cannot_be_truncated_says_so(name: str, operations: str) -> None:
    model = model_in(operations, name)
    cache = model.new_cache()
    tokens = texts_of(model.config, 1, 4)
    decode_parts(model, tokens, [4], memory_of(model, 1), cache)
    with pytest.raises(ValueError, match="cannot remove tokens from a cache"):
        cache.truncate(2)
