"""Reformer: generated tokens, and rows of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import make

from trifold import load
from trifold.hub import load_model
from trifold.nn import Inputs

pytest.importorskip("transformers")
OPTIONS: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "no_repeat_ngram_size": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of the reference and its folder."""
    model, folder = (
        make("reformer", num_hashes=2, eos_token_id=None),
        tmp_path_factory.mktemp("reformer"),
    )
    model.save_pretrained(folder)
    return model, folder


def test_generated_tokens_equal_the_reference(saved: tuple[Any, Path]) -> None:
    """Without a cache, greedily: its cache gives other tokens, and those of the first row for all
    rows of a batch.
    """
    model, folder = saved
    tokens = torch.tensor([[7, 11, 30, 14, 5], [21, 9, 30, 14, 5]])
    expected = model.generate(tokens, use_cache=False, **OPTIONS)[:, 5:]
    got = load(folder).generate_tokens(tokens, torch.ones_like(tokens, dtype=torch.bool), **OPTIONS)
    assert got == expected.tolist()
    assert all(len(set(row)) == 9 for row in got)


def test_rows_of_different_lengths_generate_what_each_generates_alone(
    saved: tuple[Any, Path],
) -> None:
    pipeline = load(saved[1])
    tokens = torch.tensor([[0, 0, 0, 7, 11], [21, 9, 30, 14, 5]])
    real = tokens != 0
    for more in ({}, {"num_beams": 3}):
        options = OPTIONS | more
        alone = [
            pipeline.generate_tokens(row[mask][None], mask[mask][None], **options)[0]
            for row, mask in zip(tokens, real, strict=True)
        ]
        assert pipeline.generate_tokens(tokens, real, **options) == alone


@torch.no_grad()
def test_rows_of_a_batch_equal_those_of_the_reference_alone(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    ours, rows = load_model(folder)[0], [torch.arange(3, 3 + length) for length in (9, 3, 12, 5)]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    logits = ours.head_outputs(Inputs(tokens, tokens != 0))["lm"]
    for row, got in zip(rows, logits, strict=True):
        expected = model(row[None], attention_mask=torch.ones_like(row)[None]).logits[0]
        torch.testing.assert_close(got[: len(row)], expected, atol=1e-4, rtol=0)
