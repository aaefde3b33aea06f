"""Batches of prompts have bounded caches, and outputs do not depend on the batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests.models import ONE_LAYER, add_noise

from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.nn.packing import round_up
from trifold.predict.generate_texts import (
    batches_by_length,
    generate_rows,
    packed_batches,
    search_tokens,
)
from trifold.ragged import Ragged

SIZES = ONE_LAYER | {"d_ff": 16, "vocab_size": 40, "max_positions": 64}
DECODER = {"shape": "decoder", "positions": "rotary", "norm_placement": "pre"}


def model(**values: Any) -> Transformer:
    torch.manual_seed(0)
    return add_noise(Transformer(ModelConfig.parse(SIZES | values)), 0.2)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 7},
    {"max_new_tokens": 900},
    {"max_length": 30},
    {"num_beams": 4, "max_new_tokens": 7},
    {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 2},
    {"do_sample": True, "num_return_sequences": 5, "max_new_tokens": 3},
    {"penalty_alpha": 0.5, "top_k": 6, "max_new_tokens": 4},
]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 600))
def test_packed_batches_fill_a_row_and_at_most_twice_its_grid(
    lengths: list[int], tokens: int
) -> None:
    batches = packed_batches(np.array(lengths), tokens)
    rows = [row for batch in batches for row in batch.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    in_order = [lengths[row] for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    for batch in batches:
        sizes = [lengths[row] for row in batch]
        assert len(sizes) == 1 or sum(sizes) < round_up(tokens)
        assert len(sizes) == 1 or len(sizes) * max(sizes) <= 2 * round_up(tokens)


@given(
    st.sampled_from(OPTIONS),
    st.lists(st.integers(1, 29), min_size=1, max_size=40),
    st.integers(1, 3000),
    st.sampled_from(["decoder", "encoder-decoder"]),
)
def test_the_tokens_of_a_batch_are_bounded(
    options: dict[str, Any], lengths: list[int], budget: int, shape: str
) -> None:
    model_config, config = (
        ModelConfig.parse(SIZES | {"shape": shape}),
        GenerationConfig.parse(options),
    )
    copies = {"num_beams": 4, "do_sample": 5, "penalty_alpha": 6}
    copies_per_row = next((count for key, count in copies.items() if key in options), 1)
    batches = batches_by_length(
        np.array(lengths), budget, lambda longest: search_tokens(config, model_config, longest)
    )
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[row] for row in batch)
        if shape == "decoder":
            limit = options.get("max_length") or longest + options.get("max_new_tokens", 50)
            longest = min(limit, model_config.max_positions)
        assert len(batch) == 1 or len(batch) * copies_per_row * longest <= budget


def test_the_cache_of_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, capacities = model(**DECODER), []
    new_cache = Transformer.new_cache

    def recording_cache(self: Transformer, *arguments: Any, capacity: int, **more: Any) -> Any:
        capacities.append(capacity)
        return new_cache(self, *arguments, capacity=capacity, **more)

    monkeypatch.setattr(Transformer, "new_cache", recording_cache)
    rows = Ragged.of([[3 + n % 30] for n in range(60)])
    finished: list[int] = []
    config = GenerationConfig(max_new_tokens=31, do_sample=True, num_return_sequences=2, seed=1)
    found = generate_rows(made, rows, config, batch_tokens=640, on_done=finished.append)
    assert finished == [10] * 6  # 2 outputs per row, of 32 tokens each including the prompt
    assert all(size * count * 2 <= 640 for size, count in zip(capacities, finished, strict=True))
    together = generate_rows(made, rows, config, batch_tokens=10**6)
    assert [[h.tokens for h in each] for each in found] == [
        [h.tokens for h in each] for each in together
    ]
