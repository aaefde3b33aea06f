"""Batches of prompts have bounded caches, and outputs do not depend on the batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as some

from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.predict.generate_texts import batches_by_length, generate_rows, search_tokens
from trifold.ragged import Ragged

SMALL = {"vocab_size": 40, "max_positions": 64, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}
DECODER = {"shape": "decoder", "positions": "rotary", "norm_placement": "pre"}


def model(**values: Any) -> Transformer:
    torch.manual_seed(0)
    made = Transformer(ModelConfig.parse(SMALL | values)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


WAYS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 7},
    {"max_new_tokens": 900},
    {"max_length": 30},
    {"num_beams": 4, "max_new_tokens": 7},
    {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 2},
    {"do_sample": True, "num_return_sequences": 5, "max_new_tokens": 3},
    {"penalty_alpha": 0.5, "top_k": 6, "max_new_tokens": 4},
]


@given(
    some.sampled_from(WAYS),
    some.lists(some.integers(1, 29), min_size=1, max_size=40),
    some.integers(1, 3000),
    some.sampled_from(["decoder", "encoder-decoder"]),
)
def test_the_tokens_of_a_batch_are_bounded(
    way: dict[str, Any], lengths: list[int], budget: int, shape: str
) -> None:
    about, config = ModelConfig.parse(SMALL | {"shape": shape}), GenerationConfig.parse(way)
    copies = {"num_beams": 4, "do_sample": 5, "penalty_alpha": 6}
    rows_of_each = next((count for key, count in copies.items() if key in way), 1)
    batches = batches_by_length(
        np.array(lengths), budget, lambda longest: search_tokens(config, about, longest)
    )
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[row] for row in batch)
        if shape == "decoder":
            most = way.get("max_length") or longest + way.get("max_new_tokens", 50)
            longest = min(most, about.max_positions)
        assert len(batch) == 1 or len(batch) * rows_of_each * longest <= budget


def test_short_prompts_do_not_share_one_large_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    made, held = model(**DECODER), []
    new_cache = Transformer.new_cache

    def watched(self: Transformer, *arguments: Any, capacity: int, **more: Any) -> Any:
        held.append(capacity)
        return new_cache(self, *arguments, capacity=capacity, **more)

    monkeypatch.setattr(Transformer, "new_cache", watched)
    rows = Ragged.of([[3 + n % 30] for n in range(60)])
    done: list[int] = []
    config = GenerationConfig(max_new_tokens=31, do_sample=True, num_return_sequences=2, seed=1)
    found = generate_rows(made, rows, config, batch_tokens=640, on_done=done.append)
    assert done == [10] * 6  # of 2 outputs each, which with their prompt have 32 tokens
    assert all(size * count * 2 <= 640 for size, count in zip(held, done, strict=True))
    together = generate_rows(made, rows, config, batch_tokens=10**6)
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in together]
